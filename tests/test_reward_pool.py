"""The grader pool survives its graders: real processes, real kills, and never a reward by accident."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, WorkerError
from freerun.protocols import Grader
from freerun.reward.pool import GraderPool
from freerun.types import Completion, FinishReason, Grade, GradeFailed, Prompt, Reward, Span

PATIENCE_SECONDS = 60.0
RIGHT, WRONG = Reward(5.0, True), Reward(-5.0, False)

TASK = '''
import ctypes, math, os, re, signal, subprocess, sys, time
from pathlib import Path

def grade(prompt, completion, answer):
    """What the completion says is what is done."""
    return actions[completion.strip()](answer)

def sleep_deaf(answer):
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Path("deaf.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(1000)

def busy(answer):
    while True:
        pass

def start_process(answer):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    Path("started.pid").write_text(str(pid))
    return True

def start_process_and_hang(answer):
    start_process(answer)
    time.sleep(1000)

def start_session_and_hang(answer):
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("started.pid").write_text(str(program.pid))
    time.sleep(1000)

def fork_that_comes_back(answer):
    pid = os.fork()
    if pid == 0:
        return True
    os.waitpid(pid, 0)
    return False

def die_once(answer):
    marker = Path("died")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return True

def wait_for_file(answer):
    Path("grading.pid").write_text(str(os.getpid()))
    while not Path("go").exists():
        time.sleep(0.01)
    return True

def chatter(answer):
    for _ in range(20000):
        print("x" * 100)
    os.write(1, b"to the descriptor")
    subprocess.run(["echo", "from a program"])
    return True

def raise_deeply(answer):
    def dig(n):
        if n == 0:
            raise KeyError("the bottom")
        dig(n - 1)
    dig(50)

def raise_(error):
    def action(answer):
        raise error
    return action

def close_everything(answer):
    os.closerange(3, 100)
    return True

actions = {
    "right": lambda a: True, "wrong": lambda a: False, "half": lambda a: 0.5,
    "nan": lambda a: math.nan, "inf": lambda a: math.inf, "none": lambda a: None, "text": lambda a: "1",
    "raise": raise_(ValueError("a bad idea")), "raise deeply": raise_deeply,
    "raise text that cannot be encoded": raise_(ValueError(chr(0xdc80))),
    "raise a megabyte": raise_(ValueError("y" * 1_000_000)),
    "interrupt": raise_(KeyboardInterrupt()), "sys.exit": lambda a: sys.exit(3),
    "allocate": lambda a: bytearray(1 << 62), "recurse": lambda a: actions["recurse"](a),
    "os._exit": lambda a: os._exit(3), "segfault": lambda a: ctypes.string_at(0),
    "close everything": close_everything,
    "sleep": lambda a: time.sleep(1000), "busy": busy, "busy in C": lambda a: re.match(r"(a+)+$", "a" * 60 + "b"),
    "deaf": sleep_deaf, "stop": lambda a: os.kill(os.getpid(), signal.SIGSTOP),
    "start process": start_process, "start process and hang": start_process_and_hang,
    "start session and hang": start_session_and_hang, "fork that comes back": fork_that_comes_back,
    "is light": lambda a: not {"torch", "transformers", "sympy", "math_verify"} & set(sys.modules),
    "die once": die_once, "wait for file": wait_for_file, "chatter": chatter,
}
'''


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)


def make_prompt(answer: str = "42") -> Prompt:
    return Prompt(
        ordinal=0, key="times-tables:6*7", text="6 * 7 =", answer=answer, token_ids=np.array([1], np.int32)
    )


def make_completion(text: str, finish_reason: FinishReason = "stop") -> Completion:
    return Completion(
        token_ids=np.array([2], np.int32),
        logprobs=np.array([-0.5], np.float32),
        spans=(Span(0, 1),),
        finish_reason=finish_reason,
        text=text,
    )


async def ask(pool: Grader, text: str, answer: str = "42") -> Grade:
    return await pool.grade(make_prompt(answer), make_completion(text))


async def ask_and_fail(pool: Grader, text: str) -> str:
    grade = await ask(pool, text)
    assert isinstance(grade, GradeFailed), grade
    return grade.reason


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def pid_in(name: str) -> int:
    return int(Path(name).read_text())


def with_pool(act: Callable[[GraderPool], Awaitable[None]], **settings: object) -> None:
    """Run `act` against a started pool and check that the close leaves no process behind."""

    async def main() -> None:
        config = RewardConfig(**({"grader": "my_task:grade", "timeout_seconds": 20.0} | settings))
        pool = GraderPool(config, log_directory=Path("logs"))
        await pool.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await act(pool)
        finally:
            pids = pool.pids()
            await pool.close()
        assert not any(is_running(pid) for pid in pids.values())
        assert pool.pids() == {}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "right", "wrong", "answer"),
    [
        ({"grader": "number"}, " 42\n", " 43\n", "42"),
        ({"grader": "exact"}, " 42\n", " 42.0\n", "42"),
        ({"grader": "regex", "pattern": r"= (\S+)"}, "6 * 7 = 42", "42", "42"),
        ({"grader": "math"}, r"$\frac{1}{2}$", r"$\frac{1}{3}$", "0.5"),
        ({"grader": "my_task:grade"}, "right", "wrong", "42"),
    ],
)
def test_every_grader_judges_through_the_pool(
    settings: dict[str, object], right: str, wrong: str, answer: str
) -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, right, answer) == RIGHT
        assert await ask(pool, wrong, answer) == WRONG
        assert (pool.num_failed, pool.num_restarts) == (0, 0)

    with_pool(act, **settings)


@pytest.mark.parametrize("grader", ["number", "math"])
def test_an_answer_that_cannot_be_graded_is_a_failure_not_a_wrong_completion(grader: str) -> None:
    async def act(pool: GraderPool) -> None:
        grade = await ask(pool, "$3$", answer="?")
        assert isinstance(grade, GradeFailed)
        assert "the answer '?'" in grade.reason
        assert pool.num_failed == 1

    with_pool(act, grader=grader)


def test_a_number_is_the_reward_itself_and_rewards_are_configured() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "half") == Reward(0.5, True)
        assert await ask(pool, "right") == Reward(1.0, True)
        assert await ask(pool, "wrong") == Reward(0.0, False)

    with_pool(act, correct=1.0, incorrect=0.0)


def test_a_completion_cut_off_at_the_length_limit_is_wrong_without_running_the_grader() -> None:
    async def act(pool: GraderPool) -> None:
        assert await pool.grade(make_prompt(), make_completion("raise", "length")) == WRONG
        assert "a bad idea" in await ask_and_fail(pool, "raise")

    with_pool(act, requires_stop=True)


def test_without_requires_stop_a_cut_off_completion_is_graded() -> None:
    async def act(pool: GraderPool) -> None:
        assert await pool.grade(make_prompt(), make_completion("right", "length")) == RIGHT

    with_pool(act)


def test_a_grader_that_raises_or_returns_nonsense_fails_and_keeps_its_process() -> None:
    reasons = {
        "nan": "my_task:grade returned nan of type float",
        "inf": "returned inf of type float",
        "none": "returned None of type NoneType",
        "text": "returned '1' of type str",
        "raise": "ValueError: a bad idea",
        "raise deeply": "KeyError: 'the bottom'",
        "raise text that cannot be encoded": "ValueError: ?",
        "raise a megabyte": "yyy",
        "interrupt": "KeyboardInterrupt",
        "sys.exit": "SystemExit: 3",
        "allocate": "MemoryError",
        "recurse": "RecursionError",
        "unheard of": "KeyError: 'unheard of'",
    }

    async def act(pool: GraderPool) -> None:
        before = pool.pids()
        for text, reason in reasons.items():
            assert reason in await ask_and_fail(pool, text)
        assert await ask(pool, "right") == RIGHT
        assert (pool.pids(), pool.num_restarts, pool.num_failed) == (before, 0, len(reasons))

    with_pool(act)


def test_a_failure_quotes_the_end_of_the_traceback_only() -> None:
    async def act(pool: GraderPool) -> None:
        assert 'my_task.py", line' in await ask_and_fail(pool, "raise")
        assert len(await ask_and_fail(pool, "raise deeply")) < 2001
        assert len(await ask_and_fail(pool, "raise a megabyte")) < 2001

    with_pool(act)


@pytest.mark.parametrize("text", ["sleep", "busy", "busy in C", "deaf", "stop"])
def test_a_grader_that_hangs_is_killed_and_replaced(text: str) -> None:
    async def act(pool: GraderPool) -> None:
        before = pool.pids()["grader-0"]
        assert "timed out after 1.0 s grading times-tables:6*7" in await ask_and_fail(pool, text)
        assert not is_running(before)
        assert await ask(pool, "right") == RIGHT
        assert (pool.num_failed, pool.num_restarts) == (1, 1)
        assert pool.pids()["grader-0"] != before

    with_pool(act, timeout_seconds=1.0)


@pytest.mark.parametrize("grader", ["regex", "math"])
def test_a_library_that_hangs_is_killed_like_a_users_function(grader: str) -> None:
    completion = {"regex": "a" * 60 + "b", "math": "$9^{9^{9^{9}}}$"}[grader]

    async def act(pool: GraderPool) -> None:
        assert "timed out after" in await ask_and_fail(pool, completion)
        assert await ask(pool, "$42$") in (RIGHT, WRONG)

    with_pool(act, grader=grader, pattern="(a+)+$", timeout_seconds=4.0)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("os._exit", "exited with status 3"),
        ("segfault", "was killed by SIGSEGV"),
        ("close everything", "exited with status"),
    ],
)
def test_a_grader_that_kills_its_process_fails_after_a_second_try(text: str, how: str) -> None:
    async def act(pool: GraderPool) -> None:
        reason = await ask_and_fail(pool, text)
        assert "the grader process died 2 times grading times-tables:6*7" in reason
        assert how in reason
        assert await ask(pool, "right") == RIGHT
        assert (pool.num_failed, pool.num_restarts) == (1, 2)

    with_pool(act)


def test_a_grade_whose_process_died_once_is_graded_by_the_next() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "die once") == RIGHT
        assert (pool.num_failed, pool.num_restarts) == (0, 1)

    with_pool(act)


def test_kill_9_from_outside_while_idle_loses_nothing() -> None:
    async def act(pool: GraderPool) -> None:
        os.kill(pool.pids()["grader-0"], signal.SIGKILL)
        assert await ask(pool, "right") == RIGHT
        assert (pool.num_failed, pool.num_restarts) == (0, 1)

    with_pool(act)


def test_kill_9_from_outside_while_grading_loses_nothing() -> None:
    async def act(pool: GraderPool) -> None:
        grade = asyncio.create_task(ask(pool, "wait for file"))
        await eventually(lambda: Path("grading.pid").exists() and Path("grading.pid").read_text())
        assert pool.activities() == {"grader-0": "grading times-tables:6*7"}
        os.kill(pid_in("grading.pid"), signal.SIGKILL)
        Path("go").touch()
        assert await grade == RIGHT
        assert (pool.num_failed, pool.num_restarts) == (0, 1)

    with_pool(act)


@pytest.mark.parametrize("text", ["start process and hang", "start session and hang"])
def test_what_a_killed_grader_started_is_killed_too(text: str) -> None:
    async def act(pool: GraderPool) -> None:
        assert "timed out" in await ask_and_fail(pool, text)
        await eventually(lambda: not is_running(pid_in("started.pid")))

    with_pool(act, timeout_seconds=1.0)


def test_what_a_grader_left_running_ends_with_the_pool() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "start process") == RIGHT
        assert is_running(pid_in("started.pid"))

    with_pool(act)
    asyncio.run(eventually(lambda: not is_running(pid_in("started.pid"))))


def test_a_fork_that_comes_back_from_the_grader_does_not_answer_for_it() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "fork that comes back") == WRONG
        assert await ask(pool, "right") == RIGHT

    with_pool(act)


def test_what_a_grader_prints_goes_to_its_log() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "chatter") == RIGHT
        log = Path("logs/grader-0.log").read_text()
        assert log.count("x" * 100) == 20000
        assert "to the descriptor" in log
        assert "from a program" in log

    with_pool(act)


def test_a_grader_process_imports_nothing_heavy() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "is light") == RIGHT

    with_pool(act)


def test_more_grades_than_processes_all_come_back_in_their_place() -> None:
    async def act(pool: GraderPool) -> None:
        texts = ["right", "wrong", "half", "raise"] * 25
        grades = await asyncio.gather(*(ask(pool, text) for text in texts))
        assert grades[0::4] == [RIGHT] * 25
        assert grades[1::4] == [WRONG] * 25
        assert grades[2::4] == [Reward(0.5, True)] * 25
        assert all(isinstance(grade, GradeFailed) for grade in grades[3::4])
        assert len(pool.pids()) == 2

    with_pool(act, num_workers=2)


def test_a_hanging_grade_does_not_hold_up_the_others() -> None:
    async def act(pool: GraderPool) -> None:
        hanging = asyncio.create_task(ask(pool, "wait for file"))
        await eventually(lambda: "grading times-tables:6*7" in pool.activities().values())
        assert await asyncio.gather(*(ask(pool, "right") for _ in range(20))) == [RIGHT] * 20
        assert not hanging.done()
        Path("go").touch()
        assert await hanging == RIGHT

    with_pool(act, num_workers=2)


def test_cancelled_grades_leave_the_pool_usable() -> None:
    async def act(pool: GraderPool) -> None:
        under_way = asyncio.create_task(ask(pool, "wait for file"))
        queued = [asyncio.create_task(ask(pool, "raise")) for _ in range(5)]
        await eventually(lambda: Path("grading.pid").exists())
        for task in (under_way, *queued):
            task.cancel()
        Path("go").touch()
        assert await ask(pool, "right") == RIGHT
        assert all(task.cancelled() for task in (under_way, *queued))
        assert (pool.num_failed, pool.num_restarts) == (0, 0)

    with_pool(act)


def test_a_cancelled_grade_that_hangs_is_killed_all_the_same() -> None:
    async def act(pool: GraderPool) -> None:
        hanging = asyncio.create_task(ask(pool, "deaf"))
        await eventually(lambda: Path("deaf.pid").exists() and Path("deaf.pid").read_text())
        hanging.cancel()
        assert await ask(pool, "right") == RIGHT
        assert not is_running(pid_in("deaf.pid"))

    with_pool(act, timeout_seconds=1.0)


def test_closing_fails_the_grades_that_wait_and_refuses_later_ones() -> None:
    async def act(pool: GraderPool) -> None:
        grades = [asyncio.create_task(ask(pool, "deaf")) for _ in range(3)]
        await eventually(lambda: Path("deaf.pid").exists() and Path("deaf.pid").read_text())
        await pool.close()
        results = await asyncio.gather(*grades, return_exceptions=True)
        assert all(isinstance(result, WorkerError) and "closed" in str(result) for result in results)
        assert not is_running(pid_in("deaf.pid"))
        with pytest.raises(WorkerError, match="the grader pool is closed"):
            await ask(pool, "right")

    with_pool(act)


def test_a_pool_that_was_not_started_says_so() -> None:
    pool = GraderPool(RewardConfig(), log_directory=Path("logs"))
    with pytest.raises(WorkerError, match="the grader pool is not started"):
        asyncio.run(ask(pool, "42"))


def start_pool(**settings: object) -> GraderPool:
    async def main() -> GraderPool:
        pool = GraderPool(RewardConfig(**settings), log_directory=Path("logs"), start_seconds=PATIENCE_SECONDS)
        await pool.start()
        await pool.close()
        return pool

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "error", "problem"),
    [
        ("import nobody_has_this", ConfigError, "No module named 'nobody_has_this'"),
        ("def judge(**_): return True", ConfigError, 'has no function "grade"; it has judge'),
        ("import sys; sys.exit(3)", ConfigError, "SystemExit: 3"),
        ("print('so far so good'); import os; os._exit(5)", WorkerError, "exited with status 5"),
    ],
)
def test_a_grader_that_cannot_start_is_reported_at_once_and_not_tried_again(
    source: str, error: type[Exception], problem: str
) -> None:
    Path("broken_task.py").write_text("open('imports', 'a').write('x')\n" + source)
    with pytest.raises(error, match=problem):
        start_pool(grader="broken_task:grade")
    assert Path("imports").read_text() == "x"


def test_a_worker_that_cannot_start_quotes_its_log() -> None:
    Path("broken_task.py").write_text("print('so far so good'); import os; os._exit(5)")
    with pytest.raises(WorkerError, match=r"grader-0 could not start[^$]*grader-0.log ends:\nso far so good"):
        start_pool(grader="broken_task:grade")


def test_a_grader_that_never_comes_up_is_given_up() -> None:
    Path("slow_task.py").write_text("import time; time.sleep(1000)")

    async def main() -> None:
        pool = GraderPool(RewardConfig(grader="slow_task:grade"), log_directory=Path("logs"), start_seconds=1.0)
        with pytest.raises(WorkerError, match=r"grader-0 could not start: no answer within 1\.0 s"):
            await pool.start()
        assert pool.pids() == {}

    asyncio.run(main())


def test_a_cancelled_start_leaves_no_process() -> None:
    Path("slow_task.py").write_text(
        "import os, time; open('grading.pid', 'w').write(str(os.getpid())); time.sleep(1000)"
    )

    async def main() -> None:
        pool = GraderPool(RewardConfig(grader="slow_task:grade"), log_directory=Path("logs"))
        start = asyncio.create_task(pool.start())
        await eventually(lambda: Path("grading.pid").exists() and Path("grading.pid").read_text())
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not is_running(pid_in("grading.pid"))

    asyncio.run(main())


@pytest.mark.parametrize("breakage", ["import nobody_has_this", "import os; os._exit(5)"])
def test_a_process_that_cannot_be_replaced_fails_all_grades_with_the_reason(breakage: str) -> None:
    async def act(pool: GraderPool) -> None:
        Path("my_task.py").write_text(breakage)
        waiting = [asyncio.create_task(ask(pool, text)) for text in ("os._exit", "right", "right")]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, WorkerError) for result in results)
        assert "could not" in str(results[0])
        with pytest.raises(WorkerError, match="grader-0 could not"):
            await ask(pool, "right")
        assert pool.num_restarts <= 3

    with_pool(act)


def test_an_unsendable_prompt_fails_its_caller_alone() -> None:
    async def act(pool: GraderPool) -> None:
        with pytest.raises(UnicodeEncodeError):
            await ask(pool, "\udc80")
        assert await ask(pool, "right") == RIGHT

    with_pool(act)


def test_an_unknown_grader_is_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="unknown grader"):
        GraderPool(RewardConfig(grader="nubmer"), log_directory=Path("logs"))
    assert not Path("logs").exists()
