"""Freshness control: rollouts start late, the trainer does not wait, and the control comes to rest."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paced_run import PacedWorld

from freerun.config.recipe import BufferConfig, Recipe
from freerun.controller.freshness import MAX_BATCHES, NUM_BATCHES, AheadPolicy
from freerun.errors import ConfigError
from freerun.events.events import AnyEvent, StepFinished
from freerun.simulation.virtual_time import run_in_virtual_time


def policy(*, ahead: int, max_staleness: int = 4) -> AheadPolicy:
    """Batches of eight groups; past those that the run began with."""
    control = AheadPolicy(groups_per_batch=8, max_staleness=max_staleness, ahead=ahead)
    feed(control, *[0] * (-(-ahead // 8) + 1))
    return control


def feed(control: AheadPolicy, *excesses: int, waited: float = 0.0) -> list[int]:
    """Steps of ten seconds; what was ahead after each."""
    ahead = []
    for excess in excesses:
        control.note(excess=excess, pace_seconds=10.0, waited_seconds=waited if excess < 0 else 0.0)
        ahead.append(control.ahead)
    return ahead


def test_what_always_lies_ready_is_started_later() -> None:
    assert feed(policy(ahead=32), *[24] * NUM_BATCHES) == [32] * (NUM_BATCHES - 1) + [32 - 24 + 1]


def test_one_batch_that_needed_it_all_keeps_it_all() -> None:
    assert feed(policy(ahead=32), *[24] * (NUM_BATCHES - 1), 1)[-1] == 32
    assert feed(policy(ahead=32), *[24] * (NUM_BATCHES - 1), 3)[-1] == 30


def test_never_less_than_one_batch_is_started_ahead() -> None:
    assert feed(policy(ahead=9), *[24] * NUM_BATCHES)[-1] == 8


def test_a_trainer_that_waits_gets_as_many_more_as_were_missing() -> None:
    assert feed(policy(ahead=8), 0, -3, waited=0.6) == [8, 11]
    assert feed(policy(ahead=30), 0, -3, waited=0.6) == [30, 32], "no more than the bound allows"


def test_waits_that_are_short_change_nothing() -> None:
    assert set(feed(policy(ahead=8), *[-1] * 500, waited=0.09)) == {8}


def test_a_batch_that_is_held_back_for_an_old_rollout_asks_for_no_more() -> None:
    control = policy(ahead=8)
    control.note(excess=0, pace_seconds=10.0, waited_seconds=10.0)
    assert control.ahead == 8


def test_batches_from_before_a_change_say_nothing_about_what_came_after() -> None:
    control = policy(ahead=8)
    feed(control, -4, waited=5.0)
    assert control.ahead == 12
    assert feed(control, *[-4] * 3, waited=5.0) == [12] * 3, "they were started before it"
    assert feed(control, -4, waited=5.0) == [16]


def test_within_the_dead_band_nothing_changes() -> None:
    assert set(feed(policy(ahead=16), *[0, 1] * 250)) == {16}


def test_each_raise_doubles_the_evidence_for_the_next_lowering() -> None:
    control, needed = policy(ahead=8), []
    for _ in range(6):
        while control.ahead == 8:
            feed(control, -8, waited=5.0)
        feed(control, *[0] * 3)
        num_batches = 0
        while control.ahead == 16:
            feed(control, 9)
            num_batches += 1
        needed.append(num_batches)
    assert needed == [min(MAX_BATCHES, NUM_BATCHES * 2**times) for times in (1, 2, 3, 4, 5, 6)]


@given(
    groups=st.integers(1, 9),
    max_staleness=st.integers(1, 8),
    measured=st.lists(st.tuples(st.integers(-100, 100), st.floats(0.0, 1e6), st.floats(0.0, 1e6)), max_size=200),
)
def test_whatever_is_measured_it_stays_between_one_batch_and_the_bound(
    groups: int, max_staleness: int, measured: list[tuple[int, float, float]]
) -> None:
    control = AheadPolicy(groups_per_batch=groups, max_staleness=max_staleness, ahead=groups * max_staleness)
    for excess, pace, waited in measured:
        control.note(excess=excess, pace_seconds=pace, waited_seconds=waited)
        assert groups <= control.ahead <= groups * max_staleness


@pytest.mark.parametrize("median_seconds", [1.0, 4.0])
def test_where_generation_is_faster_samples_are_half_as_stale_and_the_trainer_as_fast(
    median_seconds: float,
) -> None:
    early = PacedWorld(median_seconds=median_seconds, keep_fresh=False).play()
    late = PacedWorld(median_seconds=median_seconds, keep_fresh=True).play()
    assert early.mean_staleness > 3.8
    assert late.mean_staleness <= early.mean_staleness / 2
    assert late.trained_share >= 0.98 * early.trained_share


@pytest.mark.parametrize(("median_seconds", "spread"), [(1.5, 0.86), (4.0, 0.44)])
def test_the_control_comes_to_rest(median_seconds: float, spread: float) -> None:
    world = PacedWorld(median_seconds=median_seconds, spread=spread, keep_fresh=True, num_steps=160).play()
    changes = [one != other for one, other in pairwise(world.ahead)]
    assert sum(changes) <= 10
    assert sum(changes[80:]) <= 3
    assert world.waited_share < 0.02


@pytest.mark.parametrize("num_slots", [8, 16])
def test_where_training_is_faster_nothing_changes(num_slots: int) -> None:
    early = PacedWorld(median_seconds=8.0, num_slots=num_slots, keep_fresh=False, num_steps=30).play()
    late = PacedWorld(median_seconds=8.0, num_slots=num_slots, keep_fresh=True, num_steps=30).play()
    assert set(late.ahead) == {4.0}
    assert late.ended == early.ended
    assert late.mean_staleness == early.mean_staleness


def test_rollouts_that_become_slow_are_started_earlier_again() -> None:
    world = PacedWorld(median_seconds=1.0, spread=0.2, keep_fresh=True, num_steps=120)
    emit = world.emit

    def slow_down(event: AnyEvent) -> None:
        if isinstance(event, StepFinished) and event.result.version == 60:
            world.engines.slowdown = 20.0  # type: ignore[attr-defined]
        emit(event)

    world.emit = slow_down  # type: ignore[method-assign]
    world.play()
    assert world.ahead[55] < 1.5
    assert world.ahead[-1] > 2.0
    assert sum(step.wait_seconds for step in world.steps[-20:]) < 0.02 * 200


def test_a_resumed_run_continues_as_fresh_as_it_was() -> None:
    world = PacedWorld(median_seconds=1.0, keep_fresh=True, num_steps=40).play()
    assert world.saved is not None
    assert world.saved.ahead == world.ahead[-1] * world.recipe.batch_size < 2 * world.recipe.batch_size
    longer = PacedWorld(median_seconds=1.0, keep_fresh=True, num_steps=80)
    longer.saved, longer.trained = world.saved, world.trained
    run_in_virtual_time(longer.session("end"))
    longer.check_ledger()
    assert longer.ahead[0] == world.ahead[-1]
    assert max(longer.ahead) < 2.0
    assert longer.mean_staleness < 1.5


def test_it_is_off_where_rollouts_cannot_start_later() -> None:
    assert Recipe(buffer=BufferConfig(keep_fresh=True, max_staleness=2)).keeps_fresh
    for max_staleness in (0, 1):
        assert not Recipe(buffer=BufferConfig(keep_fresh=True, max_staleness=max_staleness)).keeps_fresh
    assert not Recipe(buffer=BufferConfig(keep_fresh=False)).keeps_fresh
    with pytest.raises(ConfigError, match=r"buffer\.keep_fresh and buffer\.whole_batches exclude each other"):
        BufferConfig(keep_fresh=True, whole_batches=True)
