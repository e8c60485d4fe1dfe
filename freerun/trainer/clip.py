"""What limits a ratio: from r = pi_current / pi_anchor and the advantage A, what a token gains.

    ppo      min(r A, clip(r, 1 - low, 1 + high) A)
    dual     for A < 0 the larger of that and dual_clip A, else that
    cispo    stop_gradient(clip(r, 1 - low, 1 + high)) A log pi_current
    sapo     4 / tau sigmoid(tau (r - 1)) A             tau by the sign of A
    none     r A

At r = 1 the gradient of each is A times that of log pi_current: they differ only in how they leave the anchor.

Shapes: L loss tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from freerun.config.objective import ObjectiveConfig


def gains(
    ratios_L: Tensor, current_logprobs_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig
) -> tuple[Tensor, Tensor]:
    """What each token gains, differentiable, and which tokens are held back by a hard limit."""
    free_L = ratios_L * advantages_L
    clipped_ratios_L = torch.clamp(ratios_L, 1 - objective.clip_low, 1 + objective.clip_high)
    clipped_L = clipped_ratios_L * advantages_L
    nothing_L = torch.zeros_like(ratios_L, dtype=torch.bool)
    match objective.clip:
        case "ppo":
            return torch.minimum(free_L, clipped_L), clipped_L < free_L
        case "dual":
            pessimistic_L = torch.minimum(free_L, clipped_L)
            floor_L = torch.where(advantages_L < 0, objective.dual_clip * advantages_L, -torch.inf)
            return torch.maximum(pessimistic_L, floor_L), (clipped_L < free_L) | (floor_L > pessimistic_L)
        case "cispo":
            weights_L = clipped_ratios_L.detach()
            return weights_L * advantages_L * current_logprobs_L, clipped_ratios_L != ratios_L
        case "sapo":
            tau_L = torch.where(advantages_L > 0, objective.sapo_positive, objective.sapo_negative)
            return 4 / tau_L * torch.sigmoid(tau_L * (ratios_L - 1)) * advantages_L, nothing_L
        case "none":
            return free_L, nothing_L
