"""Freshness control: starts rollouts as late as the trainer's pace allows; `max_staleness` is then only a limit.

    version      v                v+1              v+2              v+3
    trainer      │ trains batch v │ trains batch v+1 │ ...
    3 ahead      starts batch v+3 ▮▮▮▮╌╌╌╌╌╌╌╌╌╌ waits ready ╌╌╌╌╌╌╌╌╌╌╌╌► trained, 3 versions old
    1 ahead      starts batch v+1 ▮▮▮▮╌╌► trained, 1 version old

The gate lets rollouts start `ahead` groups beyond the batch of the version that engines have confirmed; with
`max_staleness` batches that is AReaL's rule. If generation is faster than training, more groups are ready
than the trainer needs. By Little's law the groups between start and training are the trainer's pace times the
latency of generation. Groups left over when the trainer asks for a batch are the excess, which can be counted.
Starting n fewer groups ahead leaves at most n fewer ready at any moment. So `ahead` is lowered by the smallest
excess of the last batches, less a margin: the trainer would not have waited for any of these batches. When the
trainer does wait, `ahead` is raised by the number of missing groups.

Between the two lies a dead band: an excess within the margin and short waits change nothing. Batches whose groups
were started before a change say nothing about its effect and are ignored. Each raise doubles the number of batches
that the next lowering needs, so the control settles.

Only starts are delayed. The gate's bound, the buffer's guarantee and their proof stay as they are: `ahead` is at
least one batch (none is the synchronous loop) and at most `max_staleness` batches.
"""

import math
from collections import deque
from collections.abc import Callable

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate

NUM_BATCHES = 5
"""Batches whose excess is measured before the first lowering."""
MAX_BATCHES = 80
"""Upper limit of that number, reached after several raises."""
MARGIN = 1 / 8
"""Excess to keep, as a share of a batch."""
TOO_LONG = 0.01
"""If the trainer waited for more than this share of the last batches' time, `ahead` is raised."""


class AheadPolicy:
    """Chooses how many groups are started ahead from measurements; knows neither clock nor gate."""

    def __init__(self, *, groups_per_batch: int, max_staleness: int, ahead: int) -> None:
        self.ahead = ahead
        self._groups_per_batch = groups_per_batch
        self._most = max_staleness * groups_per_batch
        self._margin = math.ceil(MARGIN * groups_per_batch)
        self._num_needed = NUM_BATCHES
        self._num_passed_over = self._num_batches(ahead)
        """Batches to ignore: started before the last change, or all at once at the start of the run."""
        self._excesses: deque[int] = deque(maxlen=MAX_BATCHES)
        self._seconds: deque[tuple[float, float]] = deque(maxlen=NUM_BATCHES)
        """(pace, wait) of the last batches."""

    def note(self, *, excess: int, pace_seconds: float, waited_seconds: float) -> None:
        """Note that the trainer takes a batch, and adapt `ahead`.

        `excess` is the number of groups ready beyond this batch when the trainer asked, negative if some were
        missing; `pace_seconds` is the trainer's time since the last batch, without waiting.
        """
        if self._num_passed_over:
            self._num_passed_over -= 1
            return
        self._excesses.append(excess)
        # A whole batch may be held back for one old rollout; starting more ahead would not help.
        self._seconds.append((pace_seconds, waited_seconds if excess < 0 else 0.0))
        if self._waited_share() > TOO_LONG:
            self._raise()
        elif len(self._excesses) >= self._num_needed:
            self._lower()

    def _waited_share(self) -> float:
        """Share of `NUM_BATCHES` batches' time spent waiting; batches not measured yet count as no wait."""
        pace = sum(pace for pace, _ in self._seconds) / len(self._seconds)
        waited = sum(waited for _, waited in self._seconds)
        return waited / (NUM_BATCHES * pace) if pace else 0.0

    def _raise(self) -> None:
        num_missing = -min(self._excesses)
        if self.ahead < self._most:
            self._num_needed = min(MAX_BATCHES, 2 * self._num_needed)
            self._change(min(self._most, self.ahead + num_missing))

    def _lower(self) -> None:
        unneeded = min(list(self._excesses)[-self._num_needed :]) - self._margin
        lower = max(self._groups_per_batch, self.ahead - max(0, unneeded))
        if lower < self.ahead:
            self._change(lower)

    def _change(self, ahead: int) -> None:
        self._num_passed_over = self._num_batches(max(ahead, self.ahead))
        self.ahead = ahead
        self._excesses.clear()
        self._seconds.clear()

    def _num_batches(self, ahead: int) -> int:
        """Batches whose groups may already have been started, including the one being taken."""
        return math.ceil(ahead / self._groups_per_batch) + 1


class FreshnessControl:
    """Measures the excess when the trainer asks for a batch and sets the gate's `ahead`, if it is on."""

    def __init__(
        self,
        gate: StalenessGate,
        buffer: TrajectoryBuffer,
        *,
        groups_per_batch: int,
        group_size: int,
        is_on: bool,
        clock: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._buffer = buffer
        self._groups_per_batch = groups_per_batch
        self._group_size = group_size
        self._is_on = is_on
        self._clock = clock
        self._policy = AheadPolicy(
            groups_per_batch=groups_per_batch,
            max_staleness=gate.max_staleness,
            ahead=gate.ahead // group_size,
        )
        self._excess = 0
        self._asked = 0.0
        self._taken: float | None = None
        """When the trainer got its last batch."""

    def note_asked(self) -> None:
        """The trainer asks for a batch."""
        self._asked = self._clock()
        self._excess = self._buffer.counts.ready - self._groups_per_batch

    def note_taken(self) -> None:
        """The trainer has received its batch."""
        before, self._taken = self._taken, self._clock()
        if not self._is_on or before is None:
            return
        self._policy.note(
            excess=self._excess, pace_seconds=self._asked - before, waited_seconds=self._taken - self._asked
        )
        self._gate.ahead = self._policy.ahead * self._group_size

    def metrics(self) -> dict[str, float]:
        """Metrics of a step: how many batches ahead rollouts may start; empty unless on."""
        return {"batches_ahead": self._policy.ahead / self._groups_per_batch} if self._is_on else {}
