"""Scenarios are decided by their seeds, are worth playing, and take the same course everywhere."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

from freerun.simulation.faults.dice import Dice
from freerun.simulation.faults.play import play
from freerun.simulation.faults.scenario import MAX_FAULTS, Fault, Scenario, make_scenario

COURSE = """
import hashlib
from freerun.simulation.faults.play import play
from freerun.simulation.faults.scenario import make_scenario
from freerun.types import encode

course = hashlib.sha256()
for seed in range(12):
    played = play(make_scenario(seed), listen=lambda event: course.update(encode(event)))
    course.update("\\n".join(played.timeline).encode())
print(course.hexdigest())
"""


def test_the_dice_give_shares_that_depend_on_nothing_else() -> None:
    dice = Dice(3)
    shares = [dice.share("load", index) for index in range(2000)]
    assert all(0 <= share < 1 for share in shares)
    assert 0.45 < sum(shares) / len(shares) < 0.55
    assert dice.share("load", 7) == shares[7] == Dice(3).share("load", 7)
    assert Dice(4).share("load", 7) != shares[7]
    assert {dice.choose("abc", index) for index in range(50)} == {"a", "b", "c"}


def test_seeds_cover_all_faults_endings_and_settings() -> None:
    scenarios = [make_scenario(seed) for seed in range(300)]
    faults = Counter(fault.kind for scenario in scenarios for fault in scenario.faults)
    endings = Counter(ending for scenario in scenarios for ending in scenario.endings)
    assert len(faults) == 22
    assert min(faults.values()) >= 20
    assert len(endings) == 4
    assert max(len(scenario.faults) for scenario in scenarios) == MAX_FAULTS
    assert max(scenario.num_sessions for scenario in scenarios) == 7
    assert len({repr(scenario.recipe) for scenario in scenarios}) > 290


def test_the_same_seed_takes_the_same_course_under_any_hash_seed() -> None:
    courses = {
        subprocess.run(
            [sys.executable, "-c", COURSE],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(courses) == 1


def test_leaving_out_a_fault_changes_nothing_before_it() -> None:
    def course(scenario: Scenario) -> list[str]:
        return play(scenario).timeline

    scenario = next(s for s in map(make_scenario, range(1000)) if len(s.faults) > 3 and s.faults[3].session == 0)
    shorter = replace(scenario, faults=scenario.faults[:3])
    whole, part = course(scenario), course(shorter)
    fault = next(i for i, line in enumerate(whole) if f"fault: {scenario.faults[3].kind}" in line)
    assert whole[:fault] == part[:fault]
    assert fault > 3


def test_a_scenario_without_faults_is_one_session_that_makes_every_step() -> None:
    scenario = replace(make_scenario(5), faults=(), endings=())
    played = play(scenario)
    assert played.violation is None
    assert played.outcomes == ["ended"]
    steps = [line for line in played.timeline if "step to version" in line]
    assert len(steps) == scenario.recipe.train.num_steps


def test_a_scenario_with_one_session_less_keeps_the_faults_of_the_others() -> None:
    scenario = next(s for s in map(make_scenario, range(1000)) if {f.session for f in s.faults} == {0, 1, 2})
    shorter = scenario.without_session(1)
    assert shorter.endings == (scenario.endings[0], scenario.endings[2])
    assert [f.kind for f in shorter.faults] == [f.kind for f in scenario.faults if f.session != 1]
    assert {f.session for f in shorter.faults} == {0, 1}


def test_a_grader_that_cannot_be_replaced_ends_the_session_before_it_uses_up_prompts() -> None:
    faults = (Fault(0, 20.0, "no room for a process", 0, 0.9), Fault(0, 20.5, "grader dies", 0, 0.5))
    played = play(replace(make_scenario(5), faults=faults, endings=()))
    assert played.violation is None
    assert played.outcomes == ["failed", "ended"]
    lost = [line for line in played.timeline if "grader-0 could not be replaced" in line]
    assert "error: " in lost[-1]
    assert len(lost) <= 8
