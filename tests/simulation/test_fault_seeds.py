"""Scenarios by seed: with any faults, the thirteen properties hold."""

import pytest

from freerun.simulation.faults.play import play
from freerun.simulation.faults.scenario import make_scenario

NUM_SEEDS = 300
SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_PER_TEST))
def test_every_property_holds_whatever_fails(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        played = play(make_scenario(seed))
        assert played.violation is None, f"freerun simulate --faults --seed {seed}\n{played.violation}"
        assert played.outcomes[-1] == "ended"
