"""The logprobs of targets from whole logits, in the memory of the logits themselves.

The logits of a micro-batch are by far its largest tensor (0.2 MB per token for a vocabulary of 49,152). Beyond its
matrix products, a head costs passes over such tensors and page faults for new ones. Here the probabilities
overwrite the logits, and later the gradient overwrites the probabilities: no second tensor of that size is
allocated, where `F.cross_entropy` allocates three.

Shapes: L loss tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor


def consume_logits(logits_LV: Tensor, targets_L: Tensor) -> Tensor:
    """The log-probability of each target; differentiable once. The logits are overwritten."""
    logprobs_L: Tensor = _TargetLogprobs.apply(logits_LV, targets_L)  # type: ignore[no-untyped-call]
    return logprobs_L


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_LV: Tensor, targets_L: Tensor) -> Tensor:
        targets_L1 = targets_L[:, None]
        chosen_L1 = logits_LV.gather(1, targets_L1)
        largest_L1, where_L1 = logits_LV.max(dim=1, keepdim=True)
        probabilities_LV = torch.softmax(logits_LV, dim=1, out=logits_LV)
        # Not the log of the target's probability, which may have underflowed: the largest is at least 1 / V.
        logprobs_L1 = chosen_L1 - largest_L1 + probabilities_LV.gather(1, where_L1).log()
        ctx.probabilities_LV, ctx.targets_L1 = probabilities_LV, targets_L1
        return logprobs_L1.squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad_L: Tensor) -> tuple[Tensor, None]:
        grad_L1 = grad_L[:, None]
        grad_LV = ctx.probabilities_LV.mul_(-grad_L1)
        grad_LV.scatter_add_(1, ctx.targets_L1, grad_L1)
        del ctx.probabilities_LV
        return grad_LV, None
