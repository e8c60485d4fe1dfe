"""Whole runs: nothing too old, nothing twice, nothing lost, and the run never stands still.

`Run` plays the controller, the engines and the trainer, and checks what must hold after every step. The state
machine drives it adversarially, `Simulation` at length.
"""

import random

import pytest
from fake_groups import POLICIES, a_buffer, a_group, through_a_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
        for ordinal in batch.discarded:
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
        engines_are_near = self.gate.version + self.max_staleness >= self.buffer.version
        if not self.running and engines_are_near:
            assert self.may_start or self.may_take


class RunMachine(RuleBasedStateMachine):
    """Any order of starts, finishes, failures, loads, steps and crashes that a controller can see."""

    run: Run

    @initialize(
        groups=st.integers(1, 3),
        group_size=st.integers(1, 3),
        max_staleness=st.integers(0, 3),
        policy=st.sampled_from(POLICIES),
        filtering=st.booleans(),
    )
    def begin(
        self, groups: int, group_size: int, max_staleness: int, policy: StalenessPolicy, filtering: bool
    ) -> None:
        self.run = Run(
            groups=groups,
            group_size=group_size,
            max_staleness=max_staleness,
            policy=policy,
            filtering=filtering and group_size > 1,
        )

    @precondition(lambda self: self.run.may_start)
    @rule(num_groups=st.integers(1, 12))
    def start(self, num_groups: int) -> None:
        for _ in range(min(num_groups, self.run.gate.capacity // self.run.group_size)):
            self.run.start()

    @precondition(lambda self: self.run.running)
    @rule(data=st.data(), has_variance=st.booleans())
    def finish(self, data: st.DataObject, has_variance: bool) -> None:
        # The youngest are offered first, so that shrunk examples overtake.
        ordinal = data.draw(st.sampled_from(sorted(self.run.running, reverse=True)))
        oldest_version = data.draw(st.integers(self.run.running[ordinal], self.run.version))
        self.run.finish(ordinal, oldest_version=oldest_version, has_variance=has_variance)

    @precondition(lambda self: self.run.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.run.fail(data.draw(st.sampled_from(sorted(self.run.running))))

    @precondition(lambda self: self.run.gate.version < self.run.version)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        self.run.load(data.draw(st.integers(self.run.gate.version + 1, self.run.version)))

    @precondition(lambda self: not self.run.is_training)
    @rule()
    def begin_step(self) -> None:
        self.run.begin_step()

    @precondition(lambda self: self.run.is_training)
    @rule()
    def finish_step(self) -> None:
        self.run.finish_step()

    @rule(num_steps=st.integers(1, 3))
    def overtake(self, num_steps: int) -> None:
        """The young always finish first: whoever runs long is left behind as far as the buffer lets it."""
        for _ in range(num_steps):
            if self.run.is_training:
                self.run.finish_step()
            self.run.load(self.run.version)
            while self.run.may_start:
                self.run.start()
            for ordinal in sorted(self.run.running, reverse=True):
                if self.run.begin_step():
                    break
                self.run.finish(ordinal, oldest_version=self.run.running[ordinal])

    @precondition(lambda self: not self.run.is_training)
    @rule()
    def crash_and_resume(self) -> None:
        self.run.crash_and_resume()

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "run"):
            self.run.check()

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.everything_started_is_settled_within_max_staleness()

    def everything_started_is_settled_within_max_staleness(self) -> None:
        run, started = self.run, self.run.next_ordinal
        for _ in range(2 * (run.max_staleness + 2)):
            if run.is_training:
                run.finish_step()
            run.load(run.version)
            while run.may_start:
                run.start()
            for ordinal in sorted(run.running):
                run.finish(ordinal, oldest_version=run.running[ordinal])
            run.check()
            for _ in range(run.gate.capacity // run.group_size):  # given back just now
                ordinal = run.start()
                run.finish(ordinal, oldest_version=run.running[ordinal])
            assert run.begin_step()
        assert set(range(started)) <= set(run.trained) | run.thrown_away.keys()


RunMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
test_the_invariants_hold_in_any_order_of_events = RunMachine.TestCase


class Simulation:
    """A run in virtual ticks: long-tailed lengths, a slow trainer, engines that load late, failures, filters.

    Whether a prompt fails or is filtered depends on its ordinal alone, so that runs which meet the prompts in
    another order, or twice, have to agree on what is trained.
    """

    def __init__(self, run: Run, *, seed: int, num_slots: int, crash_rate: float = 0.0) -> None:
        self.run = run
        self.seed = seed
        self.num_slots = num_slots
        self.crash_rate = crash_rate
        self.random = random.Random(seed)
        self.ticks_left: dict[int, int] = {}
        self.oldest: dict[int, int] = {}
        self.step_ticks = 0

    def fate(self, ordinal: int) -> str:
        draw = random.Random(f"{self.seed}:{ordinal}").random()
        if draw < 0.1:
            return "failed"
        return "filtered" if draw < 0.3 and self.run.filtering else "trained"

    def play_until_settled(self, num_ordinals: int) -> None:
        """Tick until the first `num_ordinals` prompts are settled."""
        for _ in range(20_000):
            self.tick()
            if set(range(num_ordinals)) <= set(self.run.trained) | self.run.thrown_away.keys():
                return
        raise AssertionError(f"not settled at version {self.run.version}: {self.run.buffer.waiting_for()}")

    def tick(self) -> None:
        self.maybe_crash()
        self.load_late()
        self.start_into_free_slots()
        self.decode()
        self.train()
        self.run.check()

    def maybe_crash(self) -> None:
        if not self.run.is_training and self.random.random() < self.crash_rate:
            self.run.crash_and_resume()
            self.ticks_left.clear()

    def load_late(self) -> None:
        if self.run.gate.version < self.run.version and self.random.random() < 0.3:
            self.run.load(self.random.randint(self.run.gate.version + 1, self.run.version))

    def start_into_free_slots(self) -> None:
        while self.run.may_start and len(self.ticks_left) < self.num_slots:
            ordinal = self.run.start()
            self.ticks_left[ordinal] = min(300, int(2 * self.random.paretovariate(0.9)))
            # The engine that takes it may have loaded versions which the others have not confirmed yet.
            self.oldest[ordinal] = self.random.randint(self.run.gate.version, self.run.version)

    def decode(self) -> None:
        for ordinal in list(self.ticks_left):
            self.ticks_left[ordinal] -= 1
            if self.ticks_left[ordinal] > 0:
                continue
            del self.ticks_left[ordinal]
            fate = self.fate(ordinal)
            if fate == "failed":
                self.run.fail(ordinal)
            else:
                self.run.finish(ordinal, oldest_version=self.oldest[ordinal], has_variance=fate != "filtered")

    def train(self) -> None:
        if self.run.is_training:
            self.step_ticks -= 1
            if self.step_ticks <= 0:
                self.run.finish_step()
        elif self.run.begin_step():
            self.step_ticks = self.random.randint(1, 4)


simulated_runs = given(
    groups=st.integers(1, 5),
    group_size=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    filtering=st.booleans(),
    num_slots=st.integers(1, 30),
    seed=st.integers(0, 2**32),
)
at_length = settings(max_examples=40, derandomize=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crash_rate", [0.0, 0.02], ids=["uninterrupted", "crashing"])
@simulated_runs
@at_length
def test_every_prompt_meets_its_fate_whatever_the_lengths_lags_and_crashes(
    policy: StalenessPolicy,
    crash_rate: float,
    groups: int,
    group_size: int,
    max_staleness: int,
    filtering: bool,
    num_slots: int,
    seed: int,
) -> None:
    """Under wait and requeue the trained set is a function of the prompts alone: a crash changes nothing."""
    run = Run(
        groups=groups,
        group_size=group_size,
        max_staleness=max_staleness,
        policy=policy,
        filtering=filtering and group_size > 1,
    )
    simulation = Simulation(run, seed=seed, num_slots=num_slots, crash_rate=crash_rate)
    simulation.play_until_settled(num_ordinals=60)
    fates = {ordinal: simulation.fate(ordinal) for ordinal in range(60)}
    trained = set(run.trained)
    for ordinal, fate in fates.items():
        was_dropped = run.thrown_away.get(ordinal) == "dropped"
        assert was_dropped <= (policy == "drop")
        if fate == "trained":
            assert ordinal in trained or was_dropped
        else:
            assert run.thrown_away[ordinal] == fate or was_dropped


def test_the_long_tail_is_dropped_by_drop_and_trained_by_wait() -> None:
    """The simulation is harsh enough for the policies to differ."""
    dropped = {}
    for policy in POLICIES:
        run = Run(groups=4, group_size=2, max_staleness=2, policy=policy, filtering=False)
        Simulation(run, seed=7, num_slots=16).play_until_settled(num_ordinals=200)
        dropped[policy] = run.buffer.counts.dropped + run.buffer.counts.requeued
    assert dropped["wait"] == 0
    assert dropped["drop"] > 5
    assert dropped["requeue"] > 5


@pytest.mark.parametrize("policy", POLICIES)
def test_without_staleness_each_batch_is_what_started_at_its_version(policy: StalenessPolicy) -> None:
    run = Run(groups=3, group_size=2, max_staleness=0, policy=policy, filtering=False)
    for version in range(4):
        while run.may_start:
            run.start()
        assert list(run.running) == [3 * version, 3 * version + 1, 3 * version + 2]
        for ordinal in sorted(run.running, reverse=True):
            assert not run.begin_step()
            run.finish(ordinal, oldest_version=version)
        assert run.begin_step()
        run.finish_step()
        run.load(run.version)
    assert run.trained == list(range(12))
