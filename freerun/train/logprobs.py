"""The trainer's logprobs of completion tokens: one packed forward, logits only where a loss needs them.

The same function gives current logprobs (with gradient) and proximal ones (under `torch.no_grad`). They are
those of the sampling distribution before top-k and top-p: the logits divided by the sampling temperature.
`F.cross_entropy` on whole logits is the fastest head measured; its memory, some floats
per vocabulary entry and loss token, is what `train.micro_batch_tokens` bounds.

Shapes: T packed tokens, L loss tokens, C model width, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from freerun.model.attention import PackedCausalAttention
from freerun.model.decoder import Decoder
from freerun.train.batch import PackedSequences


def completion_logprobs(model: Decoder, packed: PackedSequences, *, temperature: float) -> Tensor:
    """Log-probability of each completion token given all before it, in the order of `packed.targets_L`."""
    hidden_TC = model(packed.token_ids_T, packed.positions_T, PackedCausalAttention(packed.families))
    logits_LV = model.logits(hidden_TC[packed.predictors_L]).float()
    if temperature != 1:
        logits_LV = logits_LV / temperature
    return -F.cross_entropy(logits_LV, packed.targets_L, reduction="none")
