"""What the verdict of one grader is worth, before its weight.

True, False        reward.correct, reward.incorrect
Credit(share)      in proportion between the two; right only with all of it
a number           the reward itself; right if it is greater than 0
{name: verdict}    the sum of what its entries are worth, each recorded under its name; the first
                   entry decides whether the completion is right
"""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from freerun.config.reward import RewardConfig
from freerun.types import Reward

MAX_REWARD = 1e9
"""By magnitude. Advantages are differences and squares of rewards, gradients are float32: far larger rewards
overflow there, and every update would be skipped."""
CREDIT_TOLERANCE = 1e-6
"""Shares are sums and quotients of floats: this close to all of it is all of it."""


class Credit(NamedTuple):
    """A completion that is partly right."""

    share: float
    """How much of it is right, from 0 to 1."""


def to_reward(verdict: Any, grader: str, config: RewardConfig) -> Reward:
    """What the verdict is worth; raises for one that is none, and names the grader."""
    if not isinstance(verdict, Mapping):
        return _to_value(verdict, grader, config)
    if not verdict or not all(isinstance(name, str) and name.isprintable() for name in verdict):
        raise ValueError(
            f"{grader} returned {reprlib.repr(verdict)}; a dict of parts holds at least one, "
            "and their names are printable text"
        )
    rewards = {name: _to_value(part, f'{grader}, part "{name}",', config) for name, part in verdict.items()}
    return Reward(
        value=sum(reward.value for reward in rewards.values()),
        is_correct=next(iter(rewards.values())).is_correct,
        parts={name: reward.value for name, reward in rewards.items()},
    )


def _to_value(verdict: Any, grader: str, config: RewardConfig) -> Reward:
    if isinstance(verdict, bool | np.bool_):
        verdict = Credit(float(verdict))
    if isinstance(verdict, Credit) and 0 <= verdict.share <= 1:
        value = config.incorrect + verdict.share * (config.correct - config.incorrect)
        return Reward(value, verdict.share >= 1 - CREDIT_TOLERANCE)
    if isinstance(verdict, numbers.Real) and abs(value := float(verdict)) <= MAX_REWARD:
        return Reward(value, value > 0)
    raise ValueError(
        f"{grader} returned {reprlib.repr(verdict)} of type {type(verdict).__name__}; "
        f"return True, False, a number from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}, or a dict of these by name"
    )
