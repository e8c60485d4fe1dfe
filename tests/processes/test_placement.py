"""Seats of a run's workers: disjoint cores, an even division by default, nothing pinned when it is crowded."""

import os

import pytest

from freerun.config.load import make_recipe
from freerun.config.recipe import Recipe
from freerun.processes.placement import place


def recipe_of(*overrides: str) -> Recipe:
    return make_recipe("test", list(overrides))


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4, 12)))


def test_by_default_worker_and_trainer_share_the_machine_evenly() -> None:
    seats = place(recipe_of()).seats
    assert seats["rollout-0"].cores == (4, 5, 6, 7)
    assert seats["trainer"].cores == (8, 9, 10, 11)


def test_what_is_not_asked_for_is_divided_among_the_others() -> None:
    overrides = ("--engine.num_workers", "3", "--train.num_ranks", "2", "--train.num_threads", "1")
    seats = place(recipe_of(*overrides)).seats
    assert [seat.num_threads for seat in seats.values()] == [2, 2, 2, 1, 1]
    assert list(seats) == ["rollout-0", "rollout-1", "rollout-2", "trainer-0", "trainer-1"]
    assert sorted(core for seat in seats.values() for core in seat.cores) == list(range(4, 12))


def test_rollout_workers_beyond_the_free_cores_sit_with_the_trainer() -> None:
    placement = place(recipe_of("--engine.num_workers", "8", "--train.num_ranks", "2"))
    assert not placement.is_crowded
    assert [placement.seats[f"rollout-{i}"].cores for i in range(8)] == [(core,) for core in range(4, 12)]
    assert [placement.seats[f"trainer-{i}"].cores for i in range(2)] == [(10,), (11,)]


@pytest.mark.parametrize("overrides", [("--engine.num_workers", "9"), ("--engine.num_threads", "8")])
def test_more_threads_than_cores_pin_nothing(overrides: tuple[str, ...]) -> None:
    placement = place(recipe_of(*overrides))
    assert placement.is_crowded
    assert {seat.cores for seat in placement.seats.values()} == {()}
