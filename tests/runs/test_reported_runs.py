"""Runs with trackers that misbehave: the run does not notice, and says so in one line each."""

from pathlib import Path

import pytest
from tiny_runs import Run, are_gone, assert_exactly_once, make_run

BAD = [f"tests.support.told_reporters:{name}" for name in ("Raising", "Hanging", "Exiting", "Flooding")]


def to(*names: str) -> tuple[str, str]:
    return "--report.to", "[" + ", ".join(f'"{name}"' for name in names) + "]"


@pytest.mark.slow
def test_a_run_with_bad_reporters_trains_as_one_without(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *to(*BAD, "jsonl"), "--report.wait_seconds", "2", "--train.num_steps", "20")
    run.until_step(3)
    workers = run.workers("freerun.trackers.reporting")
    assert run.wait() == 0, run.output
    assert are_gone(workers)
    assert_exactly_once(run, num_steps=20)
    for name in BAD:
        assert sum(line.count(f"reporter {name} ") for line in run.output.splitlines()) == 1, run.output
    assert "\x1b" not in run.output


@pytest.mark.slow
def test_reporters_and_what_they_started_end_with_a_killed_run(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *to(*BAD[1::2], "jsonl"), "--train.num_steps", "400")
    run.until_step(3)
    run.until(lambda: (run.reader_path / "left-over").exists())
    workers = run.workers()
    run.kill()
    assert are_gone(workers, 30)


def test_an_unknown_tracker_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *to("tensorbord"))
    assert run.wait() == 2
    assert 'there is no tracker "tensorbord"; did you mean "tensorboard"?' in run.output
    assert not run.reader_path.exists()
