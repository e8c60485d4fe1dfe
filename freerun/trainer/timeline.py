"""The timeline: a step's sampled tokens in temporal order, for advantages computed along it (`critic.py`).

    sample 0, call 0 | sample 0, call 1 | sample 1, call 0 | ...

How the calls of a sample were divided into sequences does not matter here: a critic sees the same line of
tokens for a session in one sequence, in one sequence per call, or in branches. Tokens that were given to the
policy are not part of it: they belong to the transition from one call to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from freerun.trainer.advantage import Floats64
from freerun.trainer.credit import returns_of_calls
from freerun.types import Ints, WholeSample


@dataclass(frozen=True)
class Timeline:
    """Values per sampled token of a step, in temporal order."""

    rewards: Floats64
    """The reward of a call, on its last token; 0 on all others."""
    discounts: Floats64
    """The factor of the next token's value: 1 within a call, 0 at the end of a sample."""


def lay_out(samples: Sequence[WholeSample], *, turn_discount: float) -> tuple[Timeline, list[Ints]]:
    """The timeline, and for each trajectory, sample after sample, the positions of its sampled tokens."""
    calls_by_part = [part.completion.calls for sample in samples for part in sample.parts]
    calls = np.concatenate(calls_by_part)
    owners = np.repeat(np.arange(len(samples)), [sample.num_sampled for sample in samples])
    # Stable: tokens of one call stay in their order.
    order = np.lexsort((calls, owners))
    calls, owners = calls[order], owners[order]
    is_end = np.append((np.diff(calls) != 0) | (np.diff(owners) != 0), True)
    rewards, discounts = np.zeros(len(order)), np.ones(len(order))
    rewards[is_end], discounts[is_end] = _at_ends(samples, owners[is_end], calls[is_end], turn_discount)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    lengths = [len(of_part) for of_part in calls_by_part]
    return Timeline(rewards, discounts), np.split(places, np.cumsum(lengths)[:-1])


def _at_ends(
    samples: Sequence[WholeSample], owners: Ints, calls: Ints, turn_discount: float
) -> tuple[Floats64, Floats64]:
    """Reward and discount at the end of each call; those of a call without tokens go to the call before."""
    returns_by_sample = [returns_of_calls(sample, turn_discount) for sample in samples]
    returns = np.array([returns_by_sample[owner][call] for owner, call in zip(owners, calls, strict=True)])
    goes_on = np.append(np.diff(owners) == 0, False)
    discounts = np.where(goes_on, turn_discount ** np.append(np.diff(calls), 0).clip(0), 0.0)
    return returns - discounts * np.append(returns[1:], 0.0), discounts
