"""Checks that numbers are finite: weights when they are read, and a model before it becomes a checkpoint.

Gradients that are not finite are skipped, so one bad minibatch is harmless. Weights that are not finite stay, and
so do weights whose logits overflow: every later gradient is skipped and every engine refuses to sample. No later
step can repair that, so such a state must not be saved.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from freerun.config.model_directory import shown
from freerun.errors import ModelError
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder

PROBE_TOKENS = (0, 1, 2, 3)
"""Token ids that every vocabulary has."""
DIVERGED_REMEDY = "training has diverged, lower train.lr, or sft.lr during SFT"


def is_finite(tensor: Tensor) -> bool:
    """Whether the tensor holds neither NaN nor infinity, in one pass without a copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    # A NaN makes both results NaN.
    least, most = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(least) and torch.isfinite(most))


def finite(tensor: Tensor, name: str, directory: Path) -> Tensor:
    """The tensor in float32; raises on NaN and infinity, which would make every logprob NaN."""
    weight = tensor.to(torch.float32)
    if not is_finite(weight):
        raise ModelError(
            f"{directory}: tensor {shown(name)} holds NaN or infinity; use another checkpoint, "
            "or fetch the model again"
        )
    return weight


def find_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The name of the first tensor with a non-finite number; empty if there is none."""
    for name, tensor in tensors:
        if not is_finite(tensor):
            return f"{name} is not finite: {DIVERGED_REMEDY}"
    return ""


@torch.no_grad()
def find_overflow(model: Decoder) -> str:
    """Report finite weights whose logits are not, by one short forward pass; all ranks call it together."""
    logits_TV = full_forward_logits(model, [token % model.config.vocab_size for token in PROBE_TOKENS])
    return "" if bool(torch.isfinite(logits_TV).all()) else f"its logits are not finite: {DIVERGED_REMEDY}"
