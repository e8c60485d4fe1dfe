"""Any program can be the agent: its last line is graded, and nothing of it outlives the session."""

import asyncio
import json
import os
import shlex
import sys
import time
from pathlib import Path

import pytest
from played_sessions import ScriptedSession, lines, make_policy, make_task
from process_table import is_running

from freerun.errors import ConfigError
from freerun.rollout.clock import SessionClock
from freerun.rollout.command import command_episode
from freerun.rollout.episode import Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.types import Reward


def python(program: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"


async def play(
    command: str, clock: SessionClock | None = None, *, max_turns: int = 9
) -> EpisodeDone | EpisodeFailed:
    """A session of the program, which has had one call: its calls would come over HTTP."""
    program = command_episode(command)

    async def episode(task: Task, policy: Policy) -> float:
        await policy.chat().say(task.text)
        if max_turns == 1:
            with pytest.raises(Exception, match="limit"):
                await policy.chat().say(task.text)
        return await program(task, policy)  # type: ignore[no-any-return]

    task = make_task(row={"level": 3}, ordinal=5, sample=2, settings={"size": 7})
    policy = make_policy(ScriptedSession(lines("a"), max_turns=max_turns))
    return await run_episode(episode, task, policy, clock or SessionClock(100.0))


def reason_of(outcome: EpisodeDone | EpisodeFailed) -> str:
    assert isinstance(outcome, EpisodeFailed)
    return outcome.reason


@pytest.mark.parametrize(
    ("program", "is_correct"),
    [
        ("print('thinking'); print(4)", True),
        ("print(4, end='')", True),
        ("print('4\\n\\n  ')", True),
        ("print(4); print('sorry, 5')", False),
        ("pass", False),
    ],
)
def test_the_last_line_is_graded(program: str, is_correct: bool) -> None:
    outcome = asyncio.run(play(python(program)))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward.is_correct is is_correct


def test_a_program_gets_the_task_and_the_endpoint(tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    program = f"""
import json, os, sys
names = [name for name in os.environ if name.startswith(("OPENAI", "ANTHROPIC"))]
json.dump([json.load(sys.stdin), {{name: os.environ[name] for name in names}}], open({str(given)!r}, "w"))
"""
    asyncio.run(play(python(program)))
    task, environ = json.loads(given.read_text())
    seed = task.pop("seed")
    assert seed == make_task(ordinal=5).random.getrandbits(32)
    assert task == {
        "text": "2 + 2 =", "row": {"level": 3}, "key": "sums:1", "ordinal": 5, "sample": 2,
        "settings": {"size": 7},
    }  # fmt: skip
    assert environ == {
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "secret", "OPENAI_MODEL": "tiny",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_API_KEY": "secret", "ANTHROPIC_MODEL": "tiny",
    }  # fmt: skip


def test_a_program_that_fails_is_a_failure_with_the_end_of_its_stderr() -> None:
    reason = reason_of(
        asyncio.run(play(python("import sys; sys.stderr.write('x' * 10_000 + 'no room'); sys.exit(3)")))
    )
    assert "ended with status 3" in reason
    assert reason.endswith("no room")
    assert len(reason) <= 2_000


def test_a_program_that_is_killed_is_a_failure() -> None:
    reason = reason_of(asyncio.run(play(python("import os; os.kill(os.getpid(), 9)"))))
    assert reason.endswith("ended with status -9; the end of its stderr:\n(nothing)")


def test_a_program_that_fails_at_a_limit_of_the_session_is_scored() -> None:
    outcome = asyncio.run(play(python("import sys; sys.exit(1)"), max_turns=1))
    assert isinstance(outcome, EpisodeDone)
    assert (outcome.reward, outcome.is_truncated) == (Reward(0.0, False), True)


def test_much_output_is_read_and_its_end_kept() -> None:
    outcome = asyncio.run(play(python("print(('x' * 999 + '\\n') * 3_000); print(4)")))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward.is_correct


def test_output_that_is_no_text_is_graded_all_the_same() -> None:
    outcome = asyncio.run(play(python("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')")))
    assert isinstance(outcome, EpisodeDone)
    assert not outcome.reward.is_correct


HANGING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open({file!r} + ".new", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({file!r} + ".new", {file!r})
time.sleep(1000)
"""


def wait_for_end(pid: int) -> None:
    """A killed process may take a moment; one that is not killed takes longer than any test."""
    while is_running(pid):
        time.sleep(0.001)


async def pids_in(file: Path) -> list[int]:
    while not file.exists():
        await asyncio.sleep(0.01)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize("how", ["clock", "cancel"])
def test_a_program_that_hangs_is_killed_with_all_of_its_group(tmp_path: Path, how: str) -> None:
    file = tmp_path / "pids"

    async def run() -> list[int]:
        clock = SessionClock(0.1)
        with clock.stopped():  # until it hangs, however slow the machine is
            session = asyncio.create_task(play(python(HANGING.format(file=str(file))), clock))
            pids = await pids_in(file)
            assert all(map(is_running, pids))
        if how == "cancel":
            session.cancel()
            with pytest.raises(asyncio.CancelledError):
                await session
        else:
            outcome = await session
            assert isinstance(outcome, EpisodeDone)
            assert (outcome.reward, outcome.is_truncated) == (Reward(0.0, False), True)
        return pids

    for pid in asyncio.run(run()):
        wait_for_end(pid)


def test_what_a_program_leaves_behind_in_its_group_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    leave = HANGING.replace("time.sleep(1000)\n", "print(4)\n")
    outcome = asyncio.run(play(python(leave.format(file=str(file)))))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward.is_correct
    _, child = map(int, file.read_text().split())
    wait_for_end(child)


def test_a_daemon_that_holds_the_pipes_does_not_hold_up_the_session(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    daemon = HANGING.replace("time.sleep(1000)\n", "print(4)\n").replace(
        '1000)"])', '1000)"], start_new_session=True)'
    )
    outcome = asyncio.run(play(python(daemon.format(file=str(file)))))
    _, child = map(int, file.read_text().split())
    os.kill(child, 9)
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward.is_correct


def test_no_descriptor_is_left_open() -> None:
    async def run() -> None:
        await play(python("print(4)"))
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            await play(python("print(4)"))
        assert len(os.listdir("/proc/self/fd")) == len(before)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python 'unclosed", "cannot be read: No closing quotation"),
        ("no-such-program --fast", "there is no program 'no-such-program'"),
        ("''", "there is no program ''"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(command: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        command_episode(command)
