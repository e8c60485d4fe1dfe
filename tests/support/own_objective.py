"""A user's objective, as it would stand in a file beside a recipe: the built-in functions once more."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def clip(ratios: Tensor, logprobs: Tensor, advantages: Tensor, objective: Any) -> tuple[Tensor, Tensor]:
    free = ratios * advantages
    clipped = torch.clamp(ratios, 1 - objective.clip_low, 1 + objective.clip_high) * advantages
    return torch.minimum(free, clipped), clipped < free


clip.moves_without_advantage = False  # type: ignore[attr-defined]


def cautious_clip(ratios: Tensor, logprobs: Tensor, advantages: Tensor, objective: Any) -> tuple[Tensor, Tensor]:
    return clip(ratios, logprobs, advantages, objective)


def failing_clip(ratios: Tensor, logprobs: Tensor, advantages: Tensor, objective: Any) -> tuple[Tensor, Tensor]:
    raise ZeroDivisionError("the user's")


def advantage(rewards: Sequence[np.ndarray], lengths: Sequence[np.ndarray], objective: Any) -> list[np.ndarray]:
    return [_compared(of_group) for of_group in rewards]


def uncompared(
    rewards: Sequence[np.ndarray], lengths: Sequence[np.ndarray], objective: Any
) -> Sequence[np.ndarray]:
    return rewards


def _compared(rewards: np.ndarray) -> np.ndarray:
    if rewards.max() == rewards.min():
        return np.zeros_like(rewards)
    once = np.ones(len(rewards))
    centred = rewards - np.average(rewards, weights=once)
    variance = np.average(np.square(centred - np.average(centred, weights=once)), weights=once)
    return np.asarray(centred / (np.sqrt(variance) + 1e-6))


def correction(log_weights: Tensor, objective: Any) -> Tensor:
    return torch.exp(log_weights)


def aggregation(lengths: Sequence[int], max_completion_tokens: int, objective: Any) -> list[float]:
    return [1 / sum(lengths)] * len(lengths)
