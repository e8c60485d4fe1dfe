"""Advantages without a critic: one number per sample, from rewards and lengths alone.

With gamma = lambda = 1 and the reward on the last token (AReaL, section 7.1) every token of a completion, or of a
session of several calls, has the advantage of its sample:

    global        (reward - mean of the batch) / (std of the batch + 1e-6)          AReaL
    grpo          (reward - mean of the group) / (std of the group + 1e-6)          GRPO
    dr_grpo        reward - mean of the group                                       Dr. GRPO
    rloo           reward - mean of the others in the group                         RLOO
    reinforce++   (reward - mean of the group) / (std of these over the batch + 1e-6)   REINFORCE++-baseline

Mean and deviation count each sample once or, with `advantage_normalisation = "token"`, as often as it has
sampled tokens (AReaL's code): the advantages then have mean 0 and deviation 1 over the tokens. The baseline of
reinforce++ stays the plain mean of the group. dr_grpo and rloo normalise nothing.

The standard deviation is the population's. Where all rewards are equal the advantages are exactly 0, not rounding
noise over 1e-6: the trainer relies on it to skip trajectories that cannot move the weights. `critic.py` has the
advantages that differ from token to token, `credit.py` those that differ from call to call. `axes.py` has the
signature of these functions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freerun.config.objective import ObjectiveConfig

Floats64 = NDArray[np.float64]
Ints64 = NDArray[np.int64]
PerGroup = Sequence[Floats64]

EPSILON = 1e-6


def over_batch(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    counts = _counts(lengths, objective)
    return _split(normalise(np.concatenate(rewards), np.concatenate(counts)), rewards)


def over_group(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    return [normalise(r, c) for r, c in zip(rewards, _counts(lengths, objective), strict=True)]


def centred_on_batch(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    # Each sample counts once: if its length weighed it, the baseline would be biased by lengths.
    return _split(centre(np.concatenate(rewards)), rewards)


def centred(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    return [centre(of_group) for of_group in rewards]


def leave_one_out(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    # r - (sum of the others) / (G - 1) = (r - mean) G / (G - 1), and exactly 0 where it should be.
    return [centre(of_group) * (of_group.size / (of_group.size - 1)) for of_group in rewards]


def centred_over_batch(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    # The mean of centred groups is 0 already; subtracting its rounding error would destroy exact zeros.
    centred_rewards = np.concatenate([centre(of_group) for of_group in rewards])
    return _split(scale(centred_rewards, np.concatenate(_counts(lengths, objective))), rewards)


def left_to_critic(rewards: PerGroup, lengths: Sequence[Ints64], objective: ObjectiveConfig) -> PerGroup:
    """Zeros: the critic sets each token's advantage at the start of the step (`preparation.py`)."""
    return [np.zeros_like(of_group) for of_group in rewards]


def _counts(lengths: Sequence[Ints64], objective: ObjectiveConfig) -> list[Ints64]:
    """How often each sample counts in means and deviations."""
    per_token = objective.advantage_normalisation == "token"
    return [of_group if per_token else np.ones_like(of_group) for of_group in lengths]


def _split(values: Floats64, like: PerGroup) -> PerGroup:
    return np.split(values, np.cumsum([len(of_group) for of_group in like])[:-1])


def normalise(values: Floats64, counts: Ints64 | None = None) -> Floats64:
    """Centre and scale; exactly 0 if all values are equal."""
    return scale(centre(values, counts), counts)


def centre(values: Floats64, counts: Ints64 | None = None) -> Floats64:
    # Not by the mean alone: that of equal numbers can be off by one bit, and its rounding error divided by
    # EPSILON would be taken for an advantage.
    if values.max() == values.min():
        return np.zeros_like(values)
    centred: Floats64 = values - np.average(values, weights=counts)
    return centred


def scale(centred: Floats64, counts: Ints64 | None = None) -> Floats64:
    """Divide by the deviation; EPSILON keeps zeros at zero."""
    variance = np.average(np.square(centred - np.average(centred, weights=counts)), weights=counts)
    scaled: Floats64 = centred / (np.sqrt(variance) + EPSILON)
    return scaled
