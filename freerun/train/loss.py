"""The objectives, on log-probabilities of completion tokens; they know neither model nor packing.

    decoupled (AReaL, Eq. 5)   - sum  pi_proximal / pi_behaviour * min(u A, clip(u, 1 - eps, 1 + eps) A)
                                      u = pi_current / pi_proximal
    naive (PPO)                - sum  min(u A, clip(u, 1 - eps, 1 + eps) A)
                                      u = pi_current / pi_behaviour

Both are sums over tokens: the caller divides by the token count of the step, not of the micro-batch. There is
no mask, because only completion tokens get here. The behaviour weight is neither truncated nor dropped.

Shapes: L loss tokens (completion tokens of a micro-batch).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """A micro-batch's share of the loss, and how much of it the trust region held back."""

    total: Tensor
    """Sum over tokens, differentiable."""
    num_clipped: Tensor
    """Tokens whose clipped term is the smaller one, so that they push no further."""


def decoupled_ppo_loss(
    *,
    current_logprobs_L: Tensor,
    proximal_logprobs_L: Tensor,
    behaviour_logprobs_L: Tensor,
    advantages_L: Tensor,
    clip: float,
) -> PolicyLoss:
    """Clip around the proximal policy and weigh each token by what the behaviour missed (Eq. 5)."""
    ratio_L = torch.exp(current_logprobs_L - proximal_logprobs_L)
    surrogate_L, num_clipped = _clipped_surrogate(ratio_L, advantages_L, clip)

    # Off-policy correction is outside the clip: it weighs the token, it does not move the trust region.
    weight_L = torch.exp(proximal_logprobs_L - behaviour_logprobs_L)
    return PolicyLoss(total=-(weight_L * surrogate_L).sum(), num_clipped=num_clipped)


def naive_ppo_loss(
    *, current_logprobs_L: Tensor, behaviour_logprobs_L: Tensor, advantages_L: Tensor, clip: float
) -> PolicyLoss:
    """Clip around the behaviour policy itself: a stale behaviour drags the trust region back to it."""
    ratio_L = torch.exp(current_logprobs_L - behaviour_logprobs_L)
    surrogate_L, num_clipped = _clipped_surrogate(ratio_L, advantages_L, clip)
    return PolicyLoss(total=-surrogate_L.sum(), num_clipped=num_clipped)


def _clipped_surrogate(ratio_L: Tensor, advantages_L: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    free_L = ratio_L * advantages_L
    clipped_L = torch.clamp(ratio_L, 1 - clip, 1 + clip) * advantages_L
    return torch.minimum(free_L, clipped_L), (clipped_L < free_L).sum()
