"""The buffer: holds finished groups until a batch takes them: oldest first, never too stale, never twice.

    start ──► running ──► add ──► ready ──► take ──► Batch.groups      (trained)
                 │         ├─► filtered        └───► Batch.discarded   (dropped or requeued)
                 └► fail   └─► dropped or requeued

It decides and counts. The controller does the waiting, and returns to the gate the capacity of every group that
is not trained on.

**The bound.** Every group in the batch for version v has v - oldest_version <= eta (`max_staleness`). `take`
checks this under every policy and raises if it does not hold.

**Why `wait` never discards anything.** The age of a group is the oldest version its tokens can have:
`start_version` while it runs (the gate's version g when it started; every engine had confirmed g), and
`oldest_version >= start_version` once it is finished. With G groups per batch, put all live groups (running
and ready) in a line, oldest first. The line is in time for the next batch, v, if taking G at a time from its
head trains each group within the bound:

    v + i // G - age_i <= eta    for the i-th in line, from 0                                            (1)

Equivalently, for every a, at most (a + eta + 1 - v) G live groups have age <= a. Every operation preserves (1):

- A start. The gate (Eq. 3, on samples consumed + live) allows at most (g + eta + 1) G groups, of which
  v G are consumed: at most (g + eta + 1 - v) G live. That is (1) for all a >= g; smaller a do not change.
  g may lag behind v, but by at most eta; otherwise the gate has no capacity.
- A finish. The group's age stays the same or rises, so no count grows. A failure or a filter removes a group.
- A batch. `take` takes the G oldest ready groups, and only if the running groups by themselves are in time for
  v + 1. This is the only wait. Among the remaining groups of age <= a there are two cases. If one of them is
  ready, all G groups taken had age <= a too, which is the reduction that v + 1 needs. If none is ready, they are
  all running, and were checked.

The wait is always for at least one running group, and ends when enough of them have finished or failed. The run
cannot deadlock either: with nothing running and fewer than G ready, the gate's (g + eta + 1 - v) G are not used
up once g >= v - eta, so a group may start.

Waiting only for running groups that would be too old at v + 1 (those with v - age = eta) is not enough. Take
G = 1, eta = 2; a, b, c start at version 0. c overtakes, then d, started at 1, overtakes; now a and b must
both go into the one batch for version 2. The line shows this one step earlier: d waits until a or b is done.

**`drop` and `requeue`** never wait. A ready group becomes too old only when a batch is taken, so `take` discards
it then and lists it in the batch; `add` discards groups that finish too late. Progress is guaranteed: while v
stays, every group that starts has g >= v - eta and is fresh enough for the batch, so between two batches at most
the groups live at the first are discarded. But a long completion may be overtaken every time.

**Exactly once.** An ordinal is running, ready, to restart, or done (in the ledger). Nothing leaves the ledger.
"""

from collections import Counter
from typing import NamedTuple

from freerun.buffer.groups import Ages, Batch, BufferState, Counts, Ledger, has_zero_variance
from freerun.config.recipe import StalenessPolicy
from freerun.errors import CheckpointError
from freerun.types import GivenUp, Group, GroupOutcome

MAX_NAMED_ROLLOUTS = 6


class _Ready(NamedTuple):
    """Sorts oldest first; ordinals differ, so groups are never compared."""

    oldest_version: int
    ordinal: int
    group: Group


class TrajectoryBuffer:
    """Holds finished groups, tracks running ones, forms batches."""

    def __init__(
        self, *, groups_per_batch: int, max_staleness: int, policy: StalenessPolicy, filter_zero_variance: bool
    ) -> None:
        if groups_per_batch < 1 or max_staleness < 0:
            raise ValueError(
                f"buffer: groups_per_batch = {groups_per_batch} must be 1 or more, "
                f"max_staleness = {max_staleness} must be 0 or more"
            )
        self._groups_per_batch = groups_per_batch
        self._max_staleness = max_staleness
        self._policy: StalenessPolicy = policy
        self._filter_zero_variance = filter_zero_variance
        self._version = 0
        self._running: dict[int, int] = {}
        """Start versions by ordinal."""
        self._oldest_running: int | None = None
        """The oldest running ordinal, cached until a change; None if it must be computed."""
        self._ready: dict[int, _Ready] = {}
        self._running_ages, self._ready_ages = Ages(), Ages()
        self._to_restart: set[int] = set()
        self._done = Ledger()
        self._totals: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """The trainer version that the next batch is for: the number of batches taken."""
        return self._version

    @property
    def to_restart(self) -> tuple[int, ...]:
        """Ordinals to start before any new prompt: requeued, or running at the checkpoint."""
        return tuple(sorted(self._to_restart))

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def counts(self) -> Counts:
        return Counts(running=len(self._running), ready=len(self._ready), **self._totals)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version that a running or ready group may have tokens of."""
        ages = (self._running_ages.oldest, self._ready_ages.oldest)
        return min((age for age in ages if age is not None), default=None)

    def start(self, ordinal: int, start_version: int) -> None:
        """Register a running group; `start_version` is the gate's version now."""
        if ordinal in self._running or ordinal in self._ready or ordinal in self._done:
            raise ValueError(f"buffer: group {ordinal} was started before; each ordinal is trained on once")
        if self._policy == "wait":
            self._require_room(start_version)
        self._to_restart.discard(ordinal)
        self._running[ordinal] = start_version
        self._running_ages.add(start_version)
        self._oldest_running = None

    def pass_over(self, ordinal: int) -> None:
        """Mark an ordinal that will never start as done, to keep the ledger contiguous."""
        if ordinal in self._running or ordinal in self._ready or ordinal in self._to_restart:
            raise ValueError(f"buffer: group {ordinal} was started before; it cannot be passed over")
        self._settle(ordinal, "passed_over")

    def add(self, group: Group) -> GroupOutcome:
        """Accept a finished group. Unless it is `buffered`, the caller returns its capacity to the gate."""
        start_version = self._finish(group.ordinal)
        oldest_version = group.oldest_version
        if not start_version == group.start_version <= oldest_version:
            raise ValueError(
                f"buffer: group {group.ordinal} was started at version {start_version}, but says it started "
                f"at {group.start_version} and has tokens of version {oldest_version}; a version label is wrong"
            )
        if self._filter_zero_variance and has_zero_variance(group):
            self._settle(group.ordinal, "filtered")
            return "filtered"
        if self._policy != "wait" and self._is_too_old(oldest_version):
            return self._discard(group.ordinal)
        self._ready[group.ordinal] = _Ready(oldest_version, group.ordinal, group)
        self._ready_ages.add(oldest_version)
        return "buffered"

    def fail(self, ordinal: int, *, outcome: GivenUp = "failed") -> None:
        """Give up a running group. The caller returns its capacity to the gate."""
        self._finish(ordinal)
        self._settle(ordinal, outcome)

    def take(self, version: int) -> Batch | None:
        """The batch for the trainer at `version`, or None while it must wait; one batch per version."""
        if version != self._version:
            raise ValueError(
                f"buffer: asked for the batch of version {version}, the next is that of {self._version}"
            )
        if len(self._ready) < self._groups_per_batch or self._first_late_running() is not None:
            return None
        chosen = sorted(self._ready.values())[: self._groups_per_batch]
        self._require_fresh(chosen)
        for ready in chosen:
            self._remove_ready(ready.ordinal)
            self._settle(ready.ordinal, "trained")
        self._version += 1
        return Batch(version=version, groups=tuple(r.group for r in chosen), discarded=self._expire())

    def waiting_for(self) -> str:
        """Why `take` cannot form the next batch yet, as text for people."""
        if len(self._ready) < self._groups_per_batch:
            return f"{len(self._ready)} of {self._groups_per_batch} groups, {self._describe_oldest_running()}"
        late = self._first_late_running()
        if late is None:
            return "nothing: a batch is ready"
        return _describe({o: v for o, v in self._running.items() if v <= late})

    def snapshot(self) -> BufferState:
        """The state to save; take it when the trainer's weights are those of `version`."""
        return BufferState(
            version=self._version,
            ready=tuple(r.group for r in sorted(self._ready.values())),
            to_restart=tuple(sorted(self._to_restart.union(self._running))),
            done=self._done.state(),
            totals=dict(self._totals),
        )

    def restore(self, state: BufferState) -> None:
        """Restore a saved buffer with nothing running; the controller starts `to_restart` again.

        The resumed run may have a smaller `max_staleness`. `drop` and `requeue` then discard what is too old;
        `wait`, which discards nothing, refuses.
        """
        self._version = state.version
        self._running, self._oldest_running = {}, None
        self._ready = {g.ordinal: _Ready(g.oldest_version, g.ordinal, g) for g in state.ready}
        self._running_ages, self._ready_ages = Ages(), Ages(g.oldest_version for g in state.ready)
        self._to_restart = set(state.to_restart)
        self._done = Ledger(state.done.mark, state.done.above)
        self._totals = Counter(state.totals)
        self._expire()
        if self._policy == "wait" and self._first_late(self._ready_ages, self._version) is not None:
            raise CheckpointError(
                f"checkpoint: its {len(self._ready)} buffered groups cannot all be trained on within "
                f"buffer.max_staleness = {self._max_staleness} in batches of {self._groups_per_batch}; resume "
                'with the values it was saved with, or with buffer.policy = "drop"'
            )

    def _first_late(self, ages: Ages, version: int) -> int | None:
        """Age of the first group in line that violates (1) if batches are taken from `version` on."""
        # Among groups of the same age, the last in line is the first to violate it.
        for age, place in ages.in_line():
            if version + place // self._groups_per_batch - age > self._max_staleness:
                return age
        return None

    def _first_late_running(self) -> int | None:
        """Age up to which running groups must finish before a batch is taken, or None."""
        if self._policy != "wait":
            return None
        return self._first_late(self._running_ages, self._version + 1)

    def _is_too_old(self, oldest_version: int) -> bool:
        return self._version - oldest_version > self._max_staleness

    def _require_room(self, start_version: int) -> None:
        # The gate never admits such a start. If one got past it, `take` would wait forever.
        live = self._running_ages + self._ready_ages
        live.add(start_version)
        if self._first_late(live, self._version) is not None:
            raise ValueError(
                f"buffer: no room for a group started at version {start_version}: with {len(live) - 1} live "
                f"groups at version {self._version} one would exceed max_staleness = {self._max_staleness}; "
                "ask the gate before starting"
            )

    def _require_fresh(self, chosen: list[_Ready]) -> None:
        for ready in chosen:
            if not 0 <= self._version - ready.oldest_version <= self._max_staleness:
                raise RuntimeError(
                    f"buffer: group {ready.ordinal} has tokens of version {ready.oldest_version}; the batch for "
                    f"version {self._version} with max_staleness = {self._max_staleness} must not train on it"
                )

    def _finish(self, ordinal: int) -> int:
        """Remove a group from the running ones; returns its start version."""
        if ordinal not in self._running:
            raise ValueError(f"buffer: group {ordinal} is not running; start it first, finish it once")
        start_version = self._running.pop(ordinal)
        self._running_ages.remove(start_version)
        if ordinal == self._oldest_running:
            self._oldest_running = None
        return start_version

    def _remove_ready(self, ordinal: int) -> None:
        self._ready_ages.remove(self._ready.pop(ordinal).oldest_version)

    def _settle(self, ordinal: int, fate: str) -> None:
        self._totals[fate] += 1
        self._done.add(ordinal)

    def _discard(self, ordinal: int) -> GroupOutcome:
        """Discard a group that is too old, for good or to be generated again."""
        if self._policy == "requeue":
            self._totals["requeued"] += 1
            self._to_restart.add(ordinal)
            return "requeued"
        self._settle(ordinal, "dropped")
        return "dropped"

    def _expire(self) -> tuple[Group, ...]:
        """Discard the ready groups that are too old for the next batch and thus for every later one."""
        if self._policy == "wait":
            return ()
        expired = [ready for _, ready in sorted(self._ready.items()) if self._is_too_old(ready.oldest_version)]
        for ready in expired:
            self._remove_ready(ready.ordinal)
            self._discard(ready.ordinal)
        return tuple(ready.group for ready in expired)

    def _describe_oldest_running(self) -> str:
        if not self._running:
            return "no rollout is running"
        if self._oldest_running is None:
            self._oldest_running = min(zip(self._running.values(), self._running, strict=True))[1]
        oldest = self._oldest_running
        return f"oldest rollout {oldest} (started at version {self._running[oldest]})"


def _describe(running: dict[int, int]) -> str:
    """`rollouts 12, 14 (started at version 3)`."""
    names = ", ".join(str(ordinal) for ordinal in sorted(running)[:MAX_NAMED_ROLLOUTS])
    more = f" and {len(running) - MAX_NAMED_ROLLOUTS} more" if len(running) > MAX_NAMED_ROLLOUTS else ""
    first, last = min(running.values()), max(running.values())
    when = f"version {first}" if first == last else f"versions {first} to {last}"
    return f"rollout{'s' if len(running) > 1 else ''} {names}{more} (started at {when})"
