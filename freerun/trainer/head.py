"""From hidden states to the logprobs of targets, without the logits of all tokens at once.

Logits are by far the largest tensor of a micro-batch: 0.2 MB a token for a vocabulary of 49,152. They are computed
for a bounded number of tokens at a time:

    forward     chunk 1: logits ─► logprobs, freed     chunk 2: logits ─► logprobs, kept as probabilities
    backward    chunk 2: probabilities ─► gradient ─► gradients of hidden states and weight
                chunk 1: logits again ─► probabilities ─► gradient ─► gradients of hidden states and weight

The last chunk of the forward pass is the first one of the backward pass, so its probabilities are kept and only
those of the others are computed again; what fits into one chunk is not computed twice. Within a chunk the
probabilities overwrite the logits, and the gradient overwrites the probabilities.

Shapes: L loss tokens, N those of a chunk, C model width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_LOGITS = 2**25
"""Logits per chunk: 128 MB in float32."""


def target_logprobs(
    hidden_LC: Tensor,
    weight_VC: Tensor,
    targets_L: Tensor,
    *,
    dtype: torch.dtype | None = None,
    with_entropies: bool = False,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor | None]:
    """The log-probability of each target, and the entropy of its distribution if asked for.

    Products are computed in `dtype`, everything after the logits in float32; None leaves both
    in the dtype of the arguments.
    """
    num_rows = max(1, max_logits // len(weight_VC))
    logprobs_L, entropies_L = _Head.apply(  # type: ignore[no-untyped-call]
        hidden_LC, weight_VC, targets_L, dtype, with_entropies, num_rows
    )
    return logprobs_L, entropies_L


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_LC: Tensor,
        weight_VC: Tensor,
        targets_L: Tensor,
        dtype: torch.dtype | None,
        with_entropies: bool,
        num_rows: int,
    ) -> tuple[Tensor, Tensor | None]:
        chunks = _chunks(len(targets_L), num_rows)
        cast_VC = _cast(weight_VC, dtype)
        wide = hidden_LC.dtype if dtype is None else torch.float32
        logprobs_L = hidden_LC.new_empty(len(targets_L), dtype=wide)
        entropies_L = torch.empty_like(logprobs_L) if with_entropies else None
        probabilities_NV = None
        for rows in chunks:
            probabilities_NV = None  # freed before the next chunk is allocated
            logits_NV = _logits(hidden_LC[rows], cast_VC, dtype)
            logprobs_L[rows], probabilities_NV = _consume(logits_NV, targets_L[rows])
            if entropies_L is not None:
                entropies_L[rows] = -torch.xlogy(probabilities_NV, probabilities_NV).sum(dim=1)
        ctx.save_for_backward(hidden_LC, weight_VC, targets_L, entropies_L)
        ctx.chunks, ctx.dtype, ctx.probabilities_NV = chunks, dtype, probabilities_NV
        return logprobs_L, entropies_L

    @staticmethod
    def backward(
        ctx: Any, grad_L: Tensor, grad_entropies_L: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden_LC, weight_VC, targets_L, entropies_L = ctx.saved_tensors
        # The probabilities will be overwritten. Another backward pass of the same graph computes them again.
        probabilities_NV, ctx.probabilities_NV = ctx.probabilities_NV, None
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        cast_VC = _cast(weight_VC, ctx.dtype)
        grad_hidden_LC = torch.empty_like(hidden_LC) if needs_hidden else None
        grad_weight_VC: Tensor | None = None
        for rows in reversed(ctx.chunks):
            if probabilities_NV is None:
                _, probabilities_NV = _consume(_logits(hidden_LC[rows], cast_VC, ctx.dtype), targets_L[rows])
            if entropies_L is None or grad_entropies_L is None:
                grad_NV = _logits_gradient(probabilities_NV, targets_L[rows], grad_L[rows])
            else:
                uncertain_NV = _entropy_gradient(probabilities_NV, entropies_L[rows], grad_entropies_L[rows])
                grad_NV = _logits_gradient(probabilities_NV, targets_L[rows], grad_L[rows]).add_(uncertain_NV)
                del uncertain_NV
            probabilities_NV = None
            grad_NV = _cast(grad_NV, ctx.dtype)
            if grad_hidden_LC is not None:
                grad_hidden_LC[rows] = grad_NV.mm(cast_VC)
            if needs_weight:
                grad_weight_VC = _add_product(
                    grad_weight_VC, grad_NV, _cast(hidden_LC[rows], ctx.dtype), weight_VC
                )
            del grad_NV
        return grad_hidden_LC, grad_weight_VC, None, None, None, None


def _chunks(num_tokens: int, num_rows: int) -> list[slice]:
    """Chunks of at most `num_rows`. The last one is the largest because it is computed only once."""
    ends = range(num_tokens, 0, -num_rows) or [0]
    return [slice(max(0, end - num_rows), end) for end in reversed(ends)]


def _cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


def _logits(hidden_NC: Tensor, cast_VC: Tensor, dtype: torch.dtype | None) -> Tensor:
    logits_NV = F.linear(_cast(hidden_NC, dtype), cast_VC)
    return logits_NV if dtype is None else logits_NV.float()


def _consume(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Logprobs of the targets, and all probabilities, which overwrite the logits."""
    chosen_N1 = logits_NV.gather(1, targets_N[:, None])
    largest_N1, where_N1 = logits_NV.max(dim=1, keepdim=True)
    probabilities_NV = torch.softmax(logits_NV, dim=1, out=logits_NV)
    # Not the log of the target's probability, which may have underflowed: the largest is at least 1 / V.
    logprobs_N1 = chosen_N1 - largest_N1 + probabilities_NV.gather(1, where_N1).log()
    return logprobs_N1.squeeze(1), probabilities_NV


def _logits_gradient(probabilities_NV: Tensor, targets_N: Tensor, grad_N: Tensor) -> Tensor:
    """Gradient of the logprobs with respect to the logits; overwrites the probabilities."""
    grad_N1 = grad_N[:, None]
    return probabilities_NV.mul_(-grad_N1).scatter_add_(1, targets_N[:, None], grad_N1)


def _entropy_gradient(probabilities_NV: Tensor, entropies_N: Tensor, grad_N: Tensor) -> Tensor:
    """Gradient of the entropies H with respect to the logits: -p (log p + H)."""
    terms_NV = torch.xlogy(probabilities_NV, probabilities_NV)
    return terms_NV.addcmul_(probabilities_NV, entropies_N[:, None]).mul_(-grad_N[:, None])


def _add_product(sum_VC: Tensor | None, grad_NV: Tensor, hidden_NC: Tensor, like_VC: Tensor) -> Tensor:
    """Add a chunk's gradient of the weight to the sum, in place where the dtype allows."""
    if sum_VC is None:
        return grad_NV.t().mm(hidden_NC).to(like_VC.dtype)
    if grad_NV.dtype == sum_VC.dtype:
        return sum_VC.addmm_(grad_NV.t(), hidden_NC)
    return sum_VC.add_(grad_NV.t().mm(hidden_NC))
