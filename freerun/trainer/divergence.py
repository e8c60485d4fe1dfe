"""Whether training has diverged: a state that no later step can repair must not become a checkpoint.

Gradients that are not finite are skipped, so one bad minibatch is harmless. Weights that are not finite stay, and
so do those whose logits overflow: every later gradient is skipped and every engine refuses to sample.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.model.finite import is_finite

PROBE = (0, 1, 2, 3)
"""Token ids that every vocabulary has."""
REMEDY = "training has diverged, lower train.lr"


def find_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Name the first tensor that holds a number that is not finite; empty if there is none."""
    for name, tensor in tensors:
        if not is_finite(tensor):
            return f"{name} is not finite: {REMEDY}"
    return ""


@torch.no_grad()
def find_overflow(model: Decoder) -> str:
    """Say so if finite weights give logits that are not, in one short forward pass; ranks call it together."""
    logits_TV = full_forward_logits(model, [token % model.config.vocab_size for token in PROBE])
    return "" if bool(torch.isfinite(logits_TV).all()) else f"its logits are not finite: {REMEDY}"
