"""Reporters that raise, hang, exit or flood are told in one line, and leave nothing behind."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from recorded_events import a_start, make_step

from freerun.events.store import Store
from freerun.trackers.launching import Reporters
from freerun.trackers.reporting import ReportOptions

PATIENCE = 60.0


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(Path(__file__).parents[1] / "support")  # where a user's own module is found
    return tmp_path


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(file: Path) -> bool:
    """Whether the process whose id is in the file has ended."""
    try:
        return bool(psutil.Process(int(file.read_text())).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def lines_of(directory: Path, reporter: str, *, wait_seconds: float) -> list[str]:
    """What a run says whose store has some events and whose reporter is this one."""
    said: list[str] = []
    with Store(directory) as store:
        store(a_start())
        store(make_step(1, ()))
        reporters = Reporters(directory, [f"told_reporters:{reporter}"], ReportOptions())
        until(lambda: (directory / "pid").exists())
        if reporter != "Hanging":
            until(lambda: not reporters.busy)
            said += list(reporters.failures())
        reporters.finish(said.append, wait_seconds=wait_seconds)
        assert reporters.busy == []
    return [line for line in said if not line.startswith("waiting up to")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reporter", "says"),
    [
        ("Raising", "reporter told_reporters:Raising failed: ValueError: no account"),
        ("Exiting", "reporter told_reporters:Exiting failed: status 3"),
        ("Hanging", "reporter told_reporters:Hanging was still busy and was killed"),
    ],
)
def test_a_reporter_that_fails_is_one_line(directory: Path, reporter: str, says: str) -> None:
    [line] = lines_of(directory, reporter, wait_seconds=0.5)
    assert line.startswith(says)
    assert "the run is not affected" in line
    until(lambda: is_gone(directory / "pid"))


@pytest.mark.slow
def test_a_reporter_that_floods_its_log_is_killed_with_what_it_started(directory: Path) -> None:
    said: list[str] = []
    with Store(directory) as store:
        store(a_start())
        reporters = Reporters(directory, ["told_reporters:Flooding"], ReportOptions())
        log = reporters.processes[0].log
        until(lambda: log.stat().st_size > 1 << 20 and (directory / "left-over").exists())
        assert not is_gone(directory / "left-over")
        reporters.finish(said.append, wait_seconds=0.1)
    assert len([line for line in said if "was killed" in line]) == 1
    until(lambda: is_gone(directory / "left-over"))


def test_a_reporter_tells_everything_before_it_ends(directory: Path) -> None:
    said: list[str] = []
    with Store(directory) as store:
        store(a_start())
        store(make_step(1, ()))
        reporters = Reporters(directory, ["jsonl"], ReportOptions())
        store(make_step(2, ()))
        store.flush()
        reporters.finish(said.append, wait_seconds=PATIENCE)
    assert [line for line in said if not line.startswith("waiting up to")] == []
    text = (directory / "metrics.jsonl").read_text()
    assert text.count('"train/reward"') == 2
    assert os.stat(directory / "logs" / "reporter-jsonl.log").st_mode & 0o077 == 0
