"""Advantages: one number per trajectory, from the rewards of a batch; it knows no tokens and no model.

There is no critic, and gamma = lambda = 1 with the reward on the last token (AReaL, section 7.1), so every
token of a completion has the advantage of its trajectory:

    global   (reward - mean of the batch) / (std of the batch + 1e-6)      the paper
    group    (reward - mean of the group) / (std of the group + 1e-6)      GRPO

The standard deviation is the population's. Where all rewards are equal the advantages are exactly 0, not
rounding noise over 1e-6: the trainer relies on it to leave out what cannot move the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from freerun.types import Group

EPSILON = 1e-6


def compute_advantages(groups: Sequence[Group], scope: Literal["global", "group"]) -> NDArray[np.float64]:
    """The advantages of all trajectories, group after group, in the order they stand in."""
    rewards = [np.array([t.reward.value for t in group.trajectories], dtype=np.float64) for group in groups]
    if scope == "global":
        return normalise(np.concatenate(rewards))
    return np.concatenate([normalise(rewards_of_group) for rewards_of_group in rewards])


def normalise(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre and scale; exactly 0 where there is nothing to compare."""
    # Not `std == 0`: the mean of equal numbers can be off by one bit, and its rounding error divided by
    # EPSILON would be taken for an advantage.
    if rewards.max() == rewards.min():
        return np.zeros_like(rewards)
    advantages: NDArray[np.float64] = (rewards - rewards.mean()) / (rewards.std() + EPSILON)
    return advantages
