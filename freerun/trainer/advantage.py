"""Advantages without a critic: one number per trajectory, from rewards alone; it knows no tokens and no model.

With gamma = lambda = 1 and the reward on the last token (AReaL, section 7.1) every token of a completion has the
advantage of its trajectory:

    global        (reward - mean of the batch) / (std of the batch + 1e-6)          AReaL
    grpo          (reward - mean of the group) / (std of the group + 1e-6)          GRPO
    dr_grpo        reward - mean of the group                                       Dr. GRPO
    rloo           reward - mean of the others in the group                         RLOO
    reinforce++   (reward - mean of the group) / (std of these over the batch + 1e-6)   REINFORCE++-baseline

Mean and deviation count each trajectory once or, with `per_token`, as often as it has completion tokens (AReaL's
code): the advantages then have mean 0 and deviation 1 over the tokens. The baseline of reinforce++ stays the plain
mean of the group. dr_grpo and rloo normalise nothing.

The standard deviation is the population's. Where all rewards are equal the advantages are exactly 0, not
rounding noise over 1e-6: the trainer relies on it to leave out what cannot move the weights. `critic.py` has the
advantages that differ from token to token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from freerun.types import Group

Estimator = Literal["global", "grpo", "dr_grpo", "rloo", "reinforce++"]
Floats64 = NDArray[np.float64]
Ints64 = NDArray[np.int64]

EPSILON = 1e-6


def compute_advantages(groups: Sequence[Group], estimator: Estimator, *, per_token: bool = False) -> Floats64:
    """The advantages of all trajectories, group after group, in the order they stand in."""
    rewards = [np.array([t.reward.value for t in group.trajectories], dtype=np.float64) for group in groups]
    counts = [np.array([len(t.completion.token_ids) if per_token else 1 for t in g.trajectories]) for g in groups]
    match estimator:
        case "global":
            return normalise(np.concatenate(rewards), np.concatenate(counts))
        case "grpo":
            return np.concatenate([normalise(r, c) for r, c in zip(rewards, counts, strict=True)])
        case "dr_grpo":
            return np.concatenate([centre(of_group) for of_group in rewards])
        case "rloo":
            # r - (sum of the others) / (G - 1) = (r - mean) G / (G - 1), and exactly 0 where it should be.
            return np.concatenate(
                [centre(of_group) * (of_group.size / (of_group.size - 1)) for of_group in rewards]
            )
        case "reinforce++":
            # The mean of centred groups is 0 already; subtracting its rounding error would unmake exact zeros.
            centred = np.concatenate([centre(of_group) for of_group in rewards])
            return scale(centred, np.concatenate(counts))


def normalise(values: Floats64, counts: Ints64 | None = None) -> Floats64:
    """Centre and scale; exactly 0 where there is nothing to compare."""
    return scale(centre(values, counts), counts)


def centre(values: Floats64, counts: Ints64 | None = None) -> Floats64:
    # Not by the mean alone: that of equal numbers can be off by one bit, and its rounding error divided by
    # EPSILON would be taken for an advantage.
    if values.max() == values.min():
        return np.zeros_like(values)
    centred: Floats64 = values - np.average(values, weights=counts)
    return centred


def scale(centred: Floats64, counts: Ints64 | None = None) -> Floats64:
    """Divide by the deviation; EPSILON keeps zeros zero."""
    variance = np.average(np.square(centred - np.average(centred, weights=counts)), weights=counts)
    scaled: Floats64 = centred / (np.sqrt(variance) + EPSILON)
    return scaled
