"""The properties find bugs: each that is planted here is found within 500 seeds, and shrinks to a few faults."""

import gc
from collections.abc import Iterator

import pytest
from planted_bugs import BUGS, PlantedBug

from freerun.simulation.faults.play import Played, play
from freerun.simulation.faults.properties import ALL
from freerun.simulation.faults.scenario import make_scenario
from freerun.simulation.faults.shrinking import shrink

MAX_SEEDS = 500
MAX_FAULTS_LEFT = 3


# A session that a bug ends too early leaves coroutines that never ran.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a bug leaves behind is collected here, not in the middle of another test."""
    yield
    gc.collect()


def first_broken(number: int) -> Played | None:
    """The first seed that breaks this property."""
    for seed in range(MAX_SEEDS):
        played = play(make_scenario(seed))
        if played.violation is not None and played.violation.number == number:
            return played
    return None


def test_every_property_has_a_bug_that_it_finds() -> None:
    assert {bug.property for bug in BUGS} == {each.number for each in ALL} == {*range(1, 14)}
    assert len({bug.name for bug in BUGS}) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found_and_shrinks(bug: PlantedBug) -> None:
    with bug.planted():
        found = first_broken(bug.property)
        assert found is not None, f"property {bug.property} does not find it"
        smallest = shrink(found)
    assert smallest.violation is not None
    assert smallest.violation.number == bug.property
    assert len(smallest.scenario.faults) <= MAX_FAULTS_LEFT
    assert smallest.scenario.describe()[0] == f"seed {found.scenario.seed}: {len(smallest.scenario.faults)} faults"
    assert play(smallest.scenario).violation is None, "it is the bug that breaks it"
