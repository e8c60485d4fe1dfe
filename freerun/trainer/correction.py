"""How staleness is corrected: each token's behaviour weight, from w = pi_proximal / pi_behaviour.

    decoupled    w                                         AReaL, Eq. 5
    truncated    min(w, weight_cap)                        TIS
    masked       w where weight_low <= w <= weight_high, else 0        IcePop
    m2po         w where the step keeps the token, else 0              M2PO, `keep_small_drifts`
    none         1: the ratio itself is taken against the behaviour    PPO on stale data

The weight is a constant: it scales a token's gradient and does not move the trust region. A token of weight 0 is
left out, but still counts in the divisor. `axes.py` has the signature of these functions.

Shapes: L loss tokens.
"""

import torch
from torch import Tensor

from freerun.config.objective import ObjectiveConfig

M2_THRESHOLD = 0.04
"""Bound on the mean of (log w)^2 over the tokens that M2PO limits and keeps (arXiv 2510.01161)."""


def decoupled(log_weights_L: Tensor, objective: ObjectiveConfig) -> Tensor:
    return torch.exp(log_weights_L)


def truncated(log_weights_L: Tensor, objective: ObjectiveConfig) -> Tensor:
    return torch.clamp(torch.exp(log_weights_L), max=objective.weight_cap)


def masked(log_weights_L: Tensor, objective: ObjectiveConfig) -> Tensor:
    weights_L = torch.exp(log_weights_L)
    is_inside_L = (weights_L >= objective.weight_low) & (weights_L <= objective.weight_high)
    return torch.where(is_inside_L, weights_L, 0.0)


def uncorrected(log_weights_L: Tensor, objective: ObjectiveConfig) -> Tensor:
    return torch.ones_like(log_weights_L)


def drifts(log_weights_L: Tensor, advantages_L: Tensor) -> Tensor:
    """Log weights signed by the advantage: positive if a token has moved the way its advantage pushes it."""
    return log_weights_L * torch.sign(advantages_L)


def keep_small_drifts(drifts_L: Tensor, *, threshold: float = M2_THRESHOLD) -> Tensor:
    """Which tokens of a whole step M2PO trains on.

    Only tokens that moved the way they are pushed are limited (A > 0 and w > 1, or A < 0 and w < 1). Of these,
    those with the smallest (log w)^2 are kept, as many as have a mean below `threshold`; all other tokens are
    kept. Limited tokens with equal moments are kept or dropped together, so the answer does not depend on their
    order. If even the smallest moment is too large, none of them is kept.
    """
    moments_L = torch.square(drifts_L.double())
    is_limited_L = drifts_L > 0
    # Tokens that are not limited sort behind all others; a mean that includes one is never below the threshold.
    sorted_L = torch.sort(torch.where(is_limited_L, moments_L, torch.inf)).values
    means_L = torch.cumsum(sorted_L, dim=0) / torch.arange(1, len(sorted_L) + 1, device=sorted_L.device)
    # The means of a growing prefix of ascending numbers never fall, so the kept tokens are a prefix.
    num_kept = int((means_L < threshold).sum())
    if num_kept == len(sorted_L):
        return torch.ones_like(is_limited_L)
    return ~is_limited_L | (moments_L < sorted_L[num_kept])
