"""Whole runs: nothing too old, nothing twice, nothing lost, and the run never stands still.

`Run` plays the controller, the engines and the trainer, and checks what must hold after every step; the state
machine drives it adversarially.
"""

import pytest
from buffer_run import Run
from fake_groups import POLICIES
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freerun.config.recipe import StalenessPolicy


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

    @rule(share=st.sampled_from([0.0, 0.4, 1.0]))
    def look_ahead(self, share: float) -> None:
        self.run.look_ahead(share)

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
