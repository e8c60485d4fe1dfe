"""Long runs in virtual ticks: every prompt meets its fate, whatever the lengths, lags and crashes."""

import random

import pytest
from buffer_run import Run
from fake_groups import POLICIES
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.config.recipe import StalenessPolicy


class Simulation:
    """A run in virtual ticks: long-tailed lengths, a slow trainer, engines that load late, failures, filters.

    Whether a prompt fails or is filtered depends on its ordinal alone, so that runs which meet the prompts in
    another order, or twice, have to agree on what is trained.
    """

    def __init__(
        self, run: Run, *, seed: int, num_slots: int, crash_rate: float = 0.0, change_rate: float = 0.0
    ) -> None:
        self.run = run
        self.seed = seed
        self.num_slots = num_slots
        self.crash_rate = crash_rate
        self.change_rate = change_rate
        """How often freshness control changes its mind."""
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
        if self.change_rate and self.random.random() < self.change_rate:
            self.run.look_ahead(self.random.random())
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
    change_rate=st.sampled_from([0.0, 0.1]),
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
    change_rate: float,
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
    simulation = Simulation(run, seed=seed, num_slots=num_slots, crash_rate=crash_rate, change_rate=change_rate)
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
