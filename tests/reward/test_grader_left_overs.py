"""What a grader leaves: programs end with its process, in whatever session they are, and its log has a limit."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grader_pools import (
    RIGHT,
    ask,
    ask_and_fail,
    enter_users_directory,
    eventually,
    grader_pids,
    is_written,
    pid_in,
    with_pool,
)
from process_table import is_running

from freerun.processes.guard import MAX_LOG_BYTES
from freerun.processes.worker_process import log_tail
from freerun.reward.pool import GraderPool


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_users_directory(tmp_path, monkeypatch)


@pytest.mark.parametrize("text", ["start process and hang", "start session and hang", "start daemon and hang"])
def test_what_a_killed_grader_started_is_killed_too(text: str) -> None:
    async def act(pool: GraderPool) -> None:
        assert "timed out" in await ask_and_fail(pool, text)
        await eventually(lambda: not is_running(pid_in("started.pid")))

    with_pool(act, timeout_seconds=1.0)


@pytest.mark.parametrize("text", ["start session and die", "start daemon and die"])
def test_what_a_grader_started_that_died_by_itself_is_killed_too(text: str) -> None:
    async def act(pool: GraderPool) -> None:
        reason = await ask_and_fail(pool, text)
        assert "died 2 times" in reason
        assert "exited with status 3" in reason
        await eventually(lambda: not is_running(pid_in("started.pid")))
        assert await ask(pool, "right") == RIGHT

    with_pool(act)


@pytest.mark.parametrize("text", ["start process", "start daemon"])
def test_what_a_grader_left_running_ends_with_the_pool(text: str) -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, text) == RIGHT
        assert is_running(pid_in("started.pid"))

    with_pool(act)
    asyncio.run(eventually(lambda: not is_running(pid_in("started.pid"))))


CONTROLLER = """
import asyncio, sys
from grader_pools import ask, with_pool

async def act(pool):
    await ask(pool, sys.argv[1])
    await asyncio.sleep(1000)

with_pool(act)
"""


@pytest.mark.parametrize("text", ["start process", "start daemon"])
def test_what_a_grader_left_running_ends_with_a_controller_that_is_killed(text: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, text], env=environment) as controller:
        asyncio.run(eventually(lambda: is_written("started.pid")))
        assert is_running(pid_in("started.pid"))
        controller.kill()
    asyncio.run(eventually(lambda: not is_running(pid_in("started.pid"))))


def test_a_grader_ends_with_its_guard() -> None:
    async def act(pool: GraderPool) -> None:
        grade = asyncio.create_task(ask(pool, "wait for file"))
        await eventually(lambda: is_written("grading.pid"))
        worker, [guard] = pid_in("grading.pid"), grader_pids()
        assert worker != guard
        os.kill(guard, signal.SIGKILL)
        await eventually(lambda: not is_running(worker))
        Path("go").touch()
        assert await grade == RIGHT

    assert len(with_pool(act)) == 1


def test_what_a_grader_prints_goes_to_its_log() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "chatter") == RIGHT
        log = Path("logs/grader-0.log").read_text()
        assert log.count("x" * 100) == 20000
        assert "to the descriptor" in log
        assert "from a program" in log

    with_pool(act)


def test_the_log_of_a_grader_is_cut_when_it_grows_too_long() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "flood the log") == RIGHT
        log = Path("logs/grader-0.log")
        assert log.stat().st_size < MAX_LOG_BYTES + 1000
        assert log.read_text().startswith("[cut: this log was longer than 16 MiB]\ny")
        assert log.read_text().endswith("yafter the flood\n")

    with_pool(act)


def test_a_log_that_was_cut_is_quoted_all_the_same() -> None:
    Path("log").write_text("the end")
    assert log_tail(Path("log"), start=1000) == "; its log log ends:\nthe end"
    assert log_tail(Path("log"), start=4) == "; its log log ends:\nend"
