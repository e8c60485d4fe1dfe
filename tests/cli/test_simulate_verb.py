"""`freerun simulate --faults`: one seed in full, many in sum, and a failing one as small as it can be made."""

import re

import pytest
from planted_bugs import BUGS

from freerun.cli.main import main


def test_a_seed_is_shown_with_its_scenario_and_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--faults", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 3: ")
    assert "buffer.max_staleness = " in out
    assert "s  step to version 8, groups [" in out
    assert "all properties hold; sessions: " in out


def test_many_seeds_are_played_by_several_processes_and_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--faults", "--seed", "10", "--seeds", "5", "--processes", "2"]) == 0
    out = capsys.readouterr().out
    assert re.match(r"5 seeds, \d+ sessions, \d+ faults\n", out)
    assert "all properties hold" in out


def test_a_seed_that_breaks_a_property_is_shrunk_and_ends_with_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bug = next(bug for bug in BUGS if bug.name == "publishing does not wait for the last load")
    with bug.planted():
        seed = next(seed for seed in range(100) if main(["simulate", "--faults", "--seed", str(seed)]))
    out = capsys.readouterr().out
    broken = out[out.index(f"seed {seed}: ") :]
    assert "property 6 (no live engine reads the weights that a publication overwrites): version " in broken
    _, smallest = broken.split("the smallest scenario that breaks it:")
    assert f"seed {seed}: 0 faults" in smallest
    assert "property 6" in smallest


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([], "--faults"),
        (["--faults", "--seeds", "0"], "--seeds 0"),
        (["--faults", "--seed", "x"], "--help"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    assert remedy in capsys.readouterr().err
