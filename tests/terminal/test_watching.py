"""Watching a run from its store: what is told, and when it ends."""

import io
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_events import a_start, an_end, make_step, write
from rich.console import Console

from freerun.cli.main import main
from freerun.events.events import AnyEvent
from freerun.events.store import Store
from freerun.terminal.watching import watch


def a_pipe() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_run_is_told_from_where_it_is_to_its_end(tmp_path: Path) -> None:
    console = a_pipe()
    with Store(tmp_path) as store:
        for event in (a_start(), make_step(1), make_step(2)):
            store(event)
        store.flush()

        def continue_run() -> None:
            wait_for(lambda: "watching run r  step 2/60  reward 0.20" in printed(console))
            later: tuple[AnyEvent, ...] = (make_step(3), an_end())
            for event in later:
                store(event)

        writer = meanwhile(continue_run)
        assert watch(tmp_path, console, poll_seconds=0.01) == "finished"
        writer.join()
    told = printed(console)
    assert "step 1/60" not in told, "what was before is not told again"
    assert told.count("step 3/60  reward 0.30") == 1
    assert "finished at step 3/60\noutcome    finished" in told
    assert f"in {tmp_path}" in told, "where the run is now"


def test_a_run_that_has_ended_is_its_summary(tmp_path: Path) -> None:
    console = a_pipe()
    write(tmp_path, a_start(), make_step(1), an_end("failed"))
    assert watch(tmp_path, console) == "failed"
    assert "outcome    failed" in printed(console)


def make_crashed(directory: Path) -> None:
    """As `kill -9` leaves it: a session that runs, of a process that is gone."""
    with sqlite3.connect(directory / "store.sqlite") as db:
        db.execute("UPDATE sessions SET state = 'running', pid = 4194304")
    db.close()


def test_a_run_whose_process_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    console = a_pipe()
    write(tmp_path, a_start(), make_step(1))
    make_crashed(tmp_path)
    assert watch(tmp_path, console) == "crashed"
    assert "outcome    crashed: process 4194304 is gone" in printed(console)
    assert "--resume" in printed(console)


def test_a_run_that_dies_while_it_is_watched_is_said_to_have_died(tmp_path: Path) -> None:
    console = a_pipe()
    with Store(tmp_path) as store:
        store(a_start())
        store.flush()

        def die() -> None:
            wait_for(lambda: "watching run r" in printed(console))
            store(make_step(1))
            store.flush()
            make_crashed(tmp_path)

        killer = meanwhile(die)
        assert watch(tmp_path, console, poll_seconds=0.01) == "crashed"
        killer.join()
    assert "step 1/60" in printed(console), "its last words are told"


def test_a_resumed_run_is_not_taken_for_the_end_of_the_session_before(tmp_path: Path) -> None:
    console = a_pipe()
    write(tmp_path, a_start(), make_step(1), make_step(2), an_end("interrupted"))
    with Store(tmp_path) as store:

        def resume() -> None:
            wait_for(lambda: "watching run r" in printed(console))
            store.rewind(1, seconds=2.0)
            later: tuple[AnyEvent, ...] = (a_start(version=1), make_step(2), make_step(3), an_end())
            for event in later:
                store(event)

        writer = meanwhile(resume)
        assert watch(tmp_path, console, poll_seconds=0.01) == "finished"
        writer.join()
    assert "outcome    finished" in printed(console)
    assert "steps      3 of 60" in printed(console)


def test_ctrl_c_leaves_the_run_alone(tmp_path: Path) -> None:
    console = a_pipe()
    with Store(tmp_path) as store:
        store(a_start())
        store.flush()

        def interrupt() -> None:
            wait_for(lambda: "watching run r" in printed(console))
            os.kill(os.getpid(), signal.SIGINT)

        person = meanwhile(interrupt)
        assert watch(tmp_path, console, poll_seconds=0.01) == "running"
        person.join()
        store.check()
    assert printed(console).endswith("left; the run continues\n")


def test_a_terminal_gets_the_live_view_with_completions_from_the_store(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    write(tmp_path, a_start(), make_step(1), an_end())
    assert watch(tmp_path, console) == "finished"
    assert "→" in printed(console)
    assert "7*8=" in printed(console)


def test_only_a_run_that_is_there_is_watched_unless_asked_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "later"]) == 2
    assert 'there is no run "later"' in capsys.readouterr().err
    out: list[int] = []

    def wait() -> None:
        out.append(main(["watch", "later", "--wait"]))

    waiting = meanwhile(wait)
    write(Path("runs/later"), a_start(), make_step(1), an_end("failed"))
    waiting.join(60)
    assert out == [1]
    assert "outcome    failed" in capsys.readouterr().out
