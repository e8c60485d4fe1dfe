"""The buffer: nothing too old, nothing twice, nothing lost, and the run never stands still.

`Run` below plays the controller, the engines and the trainer in virtual steps; the state machine drives it
adversarially, the simulations at length. It checks the invariants after every step, whoever drives it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.buffer.groups import Batch, BufferState, Ledger, Policy
from freerun.errors import CheckpointError
from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory, decoder_for, encode

POLICIES: tuple[Policy, ...] = ("wait", "drop", "requeue")


def a_group(
    ordinal: int, start_version: int, oldest_version: int | None = None, rewards: Sequence[float] = (1.0, 0.0)
) -> Group:
    oldest = start_version if oldest_version is None else oldest_version
    prompt = Prompt(
        ordinal=ordinal, key=f"test:{ordinal}", text="?", answer="!", token_ids=np.array([1], np.int32)
    )
    completion = Completion(
        token_ids=np.array([2, 3], np.int32),
        logprobs=np.array([-1.0, -2.0], np.float32),
        spans=(Span(oldest, 1), Span(oldest + 1, 1)),
        finish_reason="stop",
        text="..",
    )
    return Group(
        ordinal=ordinal,
        start_version=start_version,
        trajectories=tuple(
            Trajectory(prompt=prompt, sample=i, completion=completion, reward=Reward(value, value > 0))
            for i, value in enumerate(rewards)
        ),
    )


def a_buffer(
    *, groups: int = 1, max_staleness: int = 0, policy: Policy = "wait", filtering: bool = False
) -> TrajectoryBuffer:
    return TrajectoryBuffer(
        groups_per_batch=groups, max_staleness=max_staleness, policy=policy, filter_zero_variance=filtering
    )


def run_through(buffer: TrajectoryBuffer, *ordinals: int, version: int) -> None:
    """Start and finish groups at one version."""
    for ordinal in ordinals:
        buffer.start(ordinal, version)
        buffer.add(a_group(ordinal, version))


def ordinals_of(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [group.ordinal for group in batch.groups]


# What the buffer says, one sentence at a time


def test_a_batch_is_formed_when_enough_groups_are_ready():
    buffer = a_buffer(groups=2)
    run_through(buffer, 0, version=0)
    assert buffer.take(0) is None
    run_through(buffer, 1, version=0)
    assert ordinals_of(buffer.take(0)) == [0, 1]


def test_the_oldest_tokens_are_taken_first_then_the_lowest_ordinal():
    buffer = a_buffer(groups=1, max_staleness=3)
    run_through(buffer, 9, version=0)
    assert ordinals_of(buffer.take(0)) == [9]
    buffer.start(5, 0)
    buffer.start(4, 1)
    buffer.start(3, 1)
    for group in (a_group(5, 0, oldest_version=1), a_group(4, 1), a_group(3, 1)):
        buffer.add(group)
    assert [ordinals_of(buffer.take(version)) for version in (1, 2, 3)] == [[3], [4], [5]]


def test_a_running_group_that_the_next_version_makes_too_old_is_waited_for():
    buffer = a_buffer(groups=1, max_staleness=1)
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    assert ordinals_of(buffer.take(0)) == [1]  # group 0 may still go into the batch of version 1
    run_through(buffer, 2, version=1)
    assert buffer.take(1) is None
    assert buffer.waiting_for() == "rollout 0 (started at version 0)"
    buffer.add(a_group(0, 0))
    assert ordinals_of(buffer.take(1)) == [0]


def test_two_old_groups_that_share_one_last_batch_are_noticed_a_version_earlier():
    """The example of the module docstring: at version 2, groups 0 and 1 would both need the only place."""
    buffer = a_buffer(groups=1, max_staleness=2)
    buffer.start(0, 0)
    buffer.start(1, 0)
    run_through(buffer, 2, version=0)
    assert ordinals_of(buffer.take(0)) == [2]
    run_through(buffer, 3, version=1)
    assert buffer.take(1) is None
    assert buffer.waiting_for() == "rollouts 0, 1 (started at version 0)"
    buffer.add(a_group(1, 0))
    assert ordinals_of(buffer.take(1)) == [1]
    assert buffer.take(2) is None
    buffer.add(a_group(0, 0))
    assert [ordinals_of(buffer.take(version)) for version in (2, 3)] == [[0], [3]]


def test_a_failure_ends_the_wait():
    buffer = a_buffer(groups=1, max_staleness=1)
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    run_through(buffer, 2, version=1)
    assert buffer.take(1) is None
    buffer.fail(0)
    assert ordinals_of(buffer.take(1)) == [2]
    assert buffer.counts.failed == 1


def test_a_group_of_equal_rewards_is_filtered_if_asked():
    buffer = a_buffer(filtering=True)
    buffer.start(0, 0)
    assert buffer.add(a_group(0, 0, rewards=(5.0, 5.0))) == "filtered"
    buffer.start(1, 0)
    assert buffer.add(a_group(1, 0, rewards=(5.0, -5.0))) == "buffered"
    assert (buffer.counts.filtered, buffer.counts.ready) == (1, 1)


def test_a_group_of_equal_rewards_is_trained_on_by_default():
    buffer = a_buffer()
    buffer.start(0, 0)
    assert buffer.add(a_group(0, 0, rewards=(5.0, 5.0))) == "buffered"


@pytest.mark.parametrize("policy", ["drop", "requeue"])
def test_ready_groups_that_a_batch_makes_too_old_are_discarded_with_it(policy: Policy):
    buffer = a_buffer(groups=1, max_staleness=1, policy=policy)
    for ordinal in (0, 1):
        buffer.start(ordinal, 0)
    run_through(buffer, 2, version=0)
    batch = buffer.take(0)
    assert batch is not None
    assert batch.discarded == ()
    for ordinal in (0, 1):
        assert buffer.add(a_group(ordinal, 0)) == "buffered"
    batch = buffer.take(1)
    assert ordinals_of(batch) == [0]
    assert batch is not None
    assert batch.discarded == (1,)
    assert buffer.counts.ready == 0


def test_a_group_that_finishes_too_old_is_dropped_for_good():
    buffer = a_buffer(policy="drop")
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    assert buffer.add(a_group(0, 0)) == "dropped"
    assert buffer.to_restart == ()
    with pytest.raises(ValueError, match="group 0 was started before"):
        buffer.start(0, 1)


def test_a_group_that_finishes_too_old_is_requeued_and_may_start_again():
    buffer = a_buffer(policy="requeue")
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    assert buffer.add(a_group(0, 0)) == "requeued"
    assert buffer.to_restart == (0,)
    run_through(buffer, 0, version=1)
    assert buffer.to_restart == ()
    assert ordinals_of(buffer.take(1)) == [0]
    assert (buffer.counts.requeued, buffer.counts.trained) == (1, 2)


def test_a_group_that_began_late_is_as_old_as_its_tokens_not_as_its_start():
    buffer = a_buffer(policy="drop")
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    assert buffer.add(a_group(0, 0, oldest_version=1)) == "buffered"


def test_an_ordinal_starts_once():
    buffer = a_buffer(groups=1, max_staleness=3)
    run_through(buffer, 0, version=0)
    buffer.take(0)
    run_through(buffer, 1, version=0)
    buffer.start(2, 0)
    for ordinal in (0, 1, 2):  # trained, ready, running
        with pytest.raises(ValueError, match=f"group {ordinal} was started before"):
            buffer.start(ordinal, 0)


def test_a_group_finishes_once_and_only_if_it_was_started():
    buffer = a_buffer()
    with pytest.raises(ValueError, match="group 7 is not running"):
        buffer.add(a_group(7, 0))
    run_through(buffer, 0, version=0)
    with pytest.raises(ValueError, match="group 0 is not running"):
        buffer.add(a_group(0, 0))
    with pytest.raises(ValueError, match="group 0 is not running"):
        buffer.fail(0)


def test_tokens_older_than_the_start_are_a_wrong_label():
    buffer = a_buffer(max_staleness=2)
    buffer.start(0, 1)
    with pytest.raises(ValueError, match="a version label is wrong"):
        buffer.add(a_group(0, 1, oldest_version=0))


def test_tokens_from_the_future_are_never_trained_on():
    buffer = a_buffer()
    buffer.start(0, 0)
    buffer.add(a_group(0, 0, oldest_version=1))
    with pytest.raises(RuntimeError, match="group 0 has tokens of version 1; the batch for version 0"):
        buffer.take(0)


def test_a_start_that_the_gate_would_not_admit_is_refused():
    buffer = a_buffer(groups=2, max_staleness=0)
    buffer.start(0, 0)
    buffer.start(1, 0)
    with pytest.raises(ValueError, match="no room for a group started at version 0"):
        buffer.start(2, 0)


def test_each_version_takes_one_batch():
    buffer = a_buffer(max_staleness=1)
    run_through(buffer, 0, 1, version=0)
    buffer.take(0)
    with pytest.raises(ValueError, match="asked for the batch of version 0, the next is that of 1"):
        buffer.take(0)


def test_it_says_how_many_groups_are_missing_and_which_rollout_is_oldest():
    buffer = a_buffer(groups=3)
    run_through(buffer, 0, version=0)
    assert buffer.waiting_for() == "1 of 3 groups, no rollout is running"
    buffer.start(2, 0)
    buffer.start(1, 0)
    assert buffer.waiting_for() == "1 of 3 groups, oldest rollout 1 (started at version 0)"


def test_it_says_so_when_it_waits_for_nothing():
    buffer = a_buffer()
    run_through(buffer, 0, version=0)
    assert buffer.waiting_for() == "nothing: a batch is ready"


def test_it_names_a_few_of_many_rollouts():
    buffer = a_buffer(groups=9, max_staleness=1)
    for ordinal in range(9):
        buffer.start(ordinal, 0)
    run_through(buffer, *range(9, 18), version=0)
    buffer.take(0)
    run_through(buffer, *range(18, 27), version=1)
    assert buffer.waiting_for() == "rollouts 0, 1, 2, 3, 4, 5 and 3 more (started at version 0)"


def test_the_ledger_stays_small_however_long_the_run():
    ledger = Ledger()
    for ordinal in (*range(1, 1000), 1001):
        ledger.add(ordinal)
    ledger.add(0)
    assert (ledger.state().mark, ledger.state().above) == (1000, (1001,))
    assert 999 in ledger
    assert 1000 not in ledger
    with pytest.raises(ValueError, match="group 5 is done already"):
        ledger.add(5)


# Checkpoints


def through_a_checkpoint(buffer: TrajectoryBuffer) -> BufferState:
    return decoder_for(BufferState).decode(encode(buffer.snapshot()))


def test_a_restored_buffer_forms_the_same_batches_and_restarts_what_ran():
    saved = a_buffer(groups=2, max_staleness=2)
    run_through(saved, 0, 1, 3, 5, version=0)
    saved.start(4, 0)
    saved.take(0)
    run_through(saved, 7, version=1)

    restored = a_buffer(groups=2, max_staleness=2)
    restored.restore(through_a_checkpoint(saved))
    assert restored.to_restart == (4,)
    assert restored.counts.running == 0
    assert restored.counts.ready == saved.counts.ready == 3

    saved.fail(4)
    restored.start(4, 1)
    restored.fail(4)
    assert restored.counts == saved.counts
    assert ordinals_of(restored.take(1)) == ordinals_of(saved.take(1)) == [3, 5]


def test_a_restored_buffer_still_knows_what_is_done():
    saved = a_buffer(groups=1, max_staleness=3)
    run_through(saved, 0, 2, version=0)
    saved.take(0)
    saved.start(5, 0)
    saved.fail(5)
    restored = a_buffer(groups=1, max_staleness=3)
    restored.restore(through_a_checkpoint(saved))
    for ordinal in (0, 2, 5):  # trained, ready, failed
        with pytest.raises(ValueError, match=f"group {ordinal} was started before"):
            restored.start(ordinal, 1)


def test_a_requeued_group_that_was_not_started_yet_survives_a_checkpoint():
    saved = a_buffer(policy="requeue")
    saved.start(0, 0)
    run_through(saved, 1, version=0)
    saved.take(0)
    saved.add(a_group(0, 0))
    restored = a_buffer(policy="requeue")
    restored.restore(through_a_checkpoint(saved))
    assert restored.to_restart == (0,)


def test_waiting_refuses_a_checkpoint_whose_groups_a_lower_bound_makes_too_old():
    saved = a_buffer(max_staleness=2)
    run_through(saved, 0, 1, 2, version=0)
    saved.take(0)
    with pytest.raises(CheckpointError, match=r"its 2 buffered groups .* buffer\.max_staleness = 0"):
        a_buffer(max_staleness=0).restore(through_a_checkpoint(saved))


def test_dropping_discards_from_a_checkpoint_what_a_lower_bound_makes_too_old():
    saved = a_buffer(max_staleness=2)
    run_through(saved, 0, 1, 2, version=0)
    saved.take(0)
    restored = a_buffer(max_staleness=0, policy="drop")
    restored.restore(through_a_checkpoint(saved))
    assert (restored.counts.ready, restored.counts.dropped) == (0, 2)


# Whole runs


class Run:
    """The controller's part, without its waits; checks what must hold after every step."""

    def __init__(
        self, *, groups: int, group_size: int, max_staleness: int, policy: Policy, filtering: bool
    ) -> None:
        self.groups = groups
        self.group_size = group_size
        self.max_staleness = max_staleness
        self.policy: Policy = policy
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
    def begin(self, groups: int, group_size: int, max_staleness: int, policy: Policy, filtering: bool) -> None:
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
            while run.may_start:  # what was discarded just now
                ordinal = run.start()
                run.finish(ordinal, oldest_version=run.running[ordinal])
            assert run.begin_step()
        assert set(range(started)) <= set(run.trained) | run.thrown_away.keys()


RunMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
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
at_length = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crash_rate", [0.0, 0.02], ids=["uninterrupted", "crashing"])
@simulated_runs
@at_length
def test_every_prompt_meets_its_fate_whatever_the_lengths_lags_and_crashes(
    policy: Policy,
    crash_rate: float,
    groups: int,
    group_size: int,
    max_staleness: int,
    filtering: bool,
    num_slots: int,
    seed: int,
):
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


def test_the_long_tail_is_dropped_by_drop_and_trained_by_wait():
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
def test_without_staleness_each_batch_is_what_started_at_its_version(policy: Policy):
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
