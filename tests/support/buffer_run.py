"""A run around a real gate and buffer, for tests of them."""

from fake_groups import a_buffer, a_group, through_a_checkpoint

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import StalenessPolicy


class Run:
    """The controller's part, without its waits; checks what must hold after every step."""

    def __init__(
        self, *, groups: int, group_size: int, max_staleness: int, policy: StalenessPolicy, filtering: bool
    ) -> None:
        self.groups = groups
        self.group_size = group_size
        self.max_staleness = max_staleness
        self.policy: StalenessPolicy = policy
        self.filtering = filtering
        self.gate = StalenessGate(batch_size=groups * group_size, max_staleness=max_staleness)
        self.buffer = self._new_buffer()
        self.version = 0
        self.is_training = False
        self.next_ordinal = 0
        self.running: dict[int, int] = {}
        self.trained: list[int] = []
        self.thrown_away: dict[int, str] = {}

    def _new_buffer(self) -> TrajectoryBuffer:
        return a_buffer(
            groups=self.groups, max_staleness=self.max_staleness, policy=self.policy, filtering=self.filtering
        )

    @property
    def may_start(self) -> bool:
        return self.gate.capacity >= self.group_size

    @property
    def may_take(self) -> bool:
        return self.buffer.waiting_for().startswith("nothing")

    def start(self) -> int:
        restarts = self.buffer.to_restart
        ordinal = restarts[0] if restarts else self.next_ordinal
        self.next_ordinal = max(self.next_ordinal, ordinal + 1)
        self.gate.start(self.group_size)
        self.buffer.start(ordinal, self.gate.version)
        self.running[ordinal] = self.gate.version
        return ordinal

    def finish(self, ordinal: int, *, oldest_version: int, has_variance: bool = True) -> None:
        rewards = [float(has_variance and sample == 0) for sample in range(self.group_size)]
        outcome = self.buffer.add(a_group(ordinal, self.running.pop(ordinal), oldest_version, rewards))
        if outcome != "buffered":
            self._throw_away(ordinal, outcome)

    def fail(self, ordinal: int) -> None:
        del self.running[ordinal]
        self.buffer.fail(ordinal)
        self._throw_away(ordinal, "failed")

    def _throw_away(self, ordinal: int, outcome: str) -> None:
        self.gate.give_back(self.group_size)
        if outcome != "requeued":
            assert ordinal not in self.thrown_away
            self.thrown_away[ordinal] = outcome

    def load(self, version: int) -> None:
        self.gate.advance(version)

    def look_ahead(self, share: float) -> None:
        """Freshness control may choose anything from one batch to all that the bound allows, at any moment."""
        if self.max_staleness > 1:
            num_more = round(share * (self.max_staleness - 1) * self.groups)
            self.gate.ahead = (self.groups + num_more) * self.group_size

    def begin_step(self) -> bool:
        could = self.may_take
        batch = self.buffer.take(self.version)
        assert (batch is not None) == could, "waiting_for and take disagree"
        if batch is None:
            return False
        assert len(batch.groups) == self.groups
        for group in batch.groups:
            assert 0 <= self.version - group.oldest_version <= self.max_staleness
        self.trained += [group.ordinal for group in batch.groups]
        for ordinal in (group.ordinal for group in batch.discarded):
            self._throw_away(ordinal, "requeued" if self.policy == "requeue" else "dropped")
        self.is_training = True
        return True

    def finish_step(self) -> None:
        self.version += 1
        self.is_training = False

    def crash_and_resume(self) -> None:
        state = through_a_checkpoint(self.buffer)
        assert state.version == self.version
        self.buffer = self._new_buffer()
        self.buffer.restore(state)
        self.running = {}
        self.gate = StalenessGate(
            batch_size=self.groups * self.group_size,
            max_staleness=self.max_staleness,
            version=self.version,
            num_buffered=self.buffer.counts.ready * self.group_size,
            ahead=self.gate.ahead,
        )

    def check(self) -> None:
        self._check_nothing_is_lost_or_trained_twice()
        self._check_the_gate_counts_what_is_consumed_or_alive()
        self._check_it_does_not_stand_still()

    def _check_nothing_is_lost_or_trained_twice(self) -> None:
        counts = self.buffer.counts
        assert len(set(self.trained)) == len(self.trained) == counts.trained
        assert not self.thrown_away.keys() & set(self.trained)
        assert counts.filtered + counts.failed + counts.dropped == len(self.thrown_away)
        alive = counts.running + counts.ready + len(self.buffer.to_restart)
        assert alive + counts.trained + len(self.thrown_away) == self.next_ordinal
        if self.policy == "wait":
            assert counts.dropped == counts.requeued == 0

    def _check_the_gate_counts_what_is_consumed_or_alive(self) -> None:
        counts = self.buffer.counts
        assert self.gate.started == self.group_size * (counts.trained + counts.ready + counts.running)

    def _check_it_does_not_stand_still(self) -> None:
        num_ahead = self.gate.ahead // self.gate.batch_size
        engines_are_near = self.gate.version + num_ahead >= self.buffer.version
        if not self.running and engines_are_near:
            assert self.may_start or self.may_take
