"""What limits a ratio: from r = pi_current / pi_anchor and the advantage A, what a token gains.

    ppo      min(r A, clip(r, 1 - low, 1 + high) A)
    dual     for A < 0 the larger of that and dual_clip A, else that
    cispo    stop_gradient(clip(r, 1 - low, 1 + high)) A log pi_current
    sapo     4 / tau sigmoid(tau (r - 1)) A             tau by the sign of A
    none     r A

At r = 1 the gradient of each is A times that of log pi_current: they differ only in what happens away from r = 1.
`axes.py` has the signature of these functions. Each returns the gains and which tokens a hard limit clips.

Shapes: L loss tokens.
"""

import torch
from torch import Tensor

from freerun.config.objective import ObjectiveConfig

SAPO_POSITIVE, SAPO_NEGATIVE = 1.0, 1.05
"""Temperatures of the gate (arXiv 2511.20347); a higher one closes it sooner."""

Gains = tuple[Tensor, Tensor | None]


def ppo(ratios_L: Tensor, logprobs_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig) -> Gains:
    return _pessimistic(ratios_L, advantages_L, objective)


def dual(ratios_L: Tensor, logprobs_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig) -> Gains:
    pessimistic_L, is_clipped_L = _pessimistic(ratios_L, advantages_L, objective)
    floor_L = torch.where(advantages_L < 0, objective.dual_clip * advantages_L, -torch.inf)
    return torch.maximum(pessimistic_L, floor_L), is_clipped_L | (floor_L > pessimistic_L)


def cispo(ratios_L: Tensor, logprobs_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig) -> Gains:
    weights_L = _clamp(ratios_L, objective).detach()
    return weights_L * advantages_L * logprobs_L, weights_L != ratios_L


def sapo(ratios_L: Tensor, logprobs_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig) -> Gains:
    tau_L = torch.where(advantages_L > 0, SAPO_POSITIVE, SAPO_NEGATIVE)
    return 4 / tau_L * torch.sigmoid(tau_L * (ratios_L - 1)) * advantages_L, None


def unclipped(ratios_L: Tensor, logprobs_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig) -> Gains:
    return ratios_L * advantages_L, None


def _pessimistic(ratios_L: Tensor, advantages_L: Tensor, objective: ObjectiveConfig) -> tuple[Tensor, Tensor]:
    free_L = ratios_L * advantages_L
    clipped_L = _clamp(ratios_L, objective) * advantages_L
    return torch.minimum(free_L, clipped_L), clipped_L < free_L


def _clamp(ratios_L: Tensor, objective: ObjectiveConfig) -> Tensor:
    return torch.clamp(ratios_L, 1 - objective.clip_low, 1 + objective.clip_high)
