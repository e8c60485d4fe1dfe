"""The buffer's records: batch, counts, saved state, the ledger of finished ordinals, ages.

Records only; `buffer.py` decides. The ledger checks "trained exactly once" in bounded memory: prompts start in
the order of their ordinals, so all but the newest are done, and one mark covers them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from freerun.types import Group


class Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The groups of one training step, oldest first, and the ready groups that the step makes too old."""

    version: int
    """The trainer's version at the start of the step; the step makes version + 1."""
    groups: tuple[Group, ...]
    discarded: tuple[Group, ...]
    """Ready groups that this step makes too old; return them to the gate. Empty under `wait`."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Groups running and ready now, and the outcomes of all others."""

    running: int = 0
    ready: int = 0
    trained: int = 0
    """Groups taken into a batch."""
    filtered: int = 0
    failed: int = 0
    dropped: int = 0
    requeued: int = 0
    """How often a group was discarded to be generated again."""
    passed_over: int = 0
    """Ordinals that were never started because the curriculum rests their prompt."""
    unrated: int = 0
    """Live sessions without feedback."""


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    mark: int
    above: tuple[int, ...]


class BufferState(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The buffer's part of a checkpoint; belongs to the trainer's weights of the same version."""

    version: int
    ready: tuple[Group, ...]
    to_restart: tuple[int, ...]
    """Ordinals that were running, or requeued and not yet restarted."""
    done: LedgerState
    totals: dict[str, int]


class Ledger:
    """A set of ordinals that only grows: all below `mark`, and the few done out of order above it."""

    def __init__(self, mark: int = 0, above: Iterable[int] = ()) -> None:
        self._mark = mark
        self._above = set(above)

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self._mark or ordinal in self._above

    def add(self, ordinal: int) -> None:
        if ordinal in self:
            raise ValueError(f"buffer: group {ordinal} is done already")
        self._above.add(ordinal)
        while self._mark in self._above:
            self._above.remove(self._mark)
            self._mark += 1

    def state(self) -> LedgerState:
        return LedgerState(mark=self._mark, above=tuple(sorted(self._above)))


class Ages:
    """The number of groups of each age. Ages are versions, so there are few even with many groups."""

    def __init__(self, ages: Iterable[int] = ()) -> None:
        self._counts = Counter(ages)

    def add(self, age: int) -> None:
        self._counts[age] += 1

    def remove(self, age: int) -> None:
        self._counts[age] -= 1
        if not self._counts[age]:
            del self._counts[age]

    def __add__(self, other: Ages) -> Ages:
        both = Ages()
        both._counts = self._counts + other._counts
        return both

    def __len__(self) -> int:
        return self._counts.total()

    @property
    def oldest(self) -> int | None:
        return min(self._counts, default=None)

    def in_line(self) -> Iterator[tuple[int, int]]:
        """Each age, oldest first, with the place in line (from 0) of its last group."""
        place = -1
        for age in sorted(self._counts):
            place += self._counts[age]
            yield age, place


def has_zero_variance(group: Group) -> bool:
    """Whether all rewards are equal, turn by turn: no sample is better than its siblings."""
    rewards = (trajectory.reward for trajectory in group.trajectories)  # all parts of a sample carry the same one
    return len({(reward.value, reward.turns) for reward in rewards}) == 1
