"""Graders that raise, hang, crash and fork: real processes, real kills, and never a reward by accident."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from grader_pools import (
    RIGHT,
    WRONG,
    ask,
    ask_and_fail,
    enter_users_directory,
    eventually,
    grader_pids,
    is_written,
    pid_in,
    with_pool,
)
from process_table import children_running, is_running

from freerun.errors import WorkerError
from freerun.reward.pool import GraderPool
from freerun.types import Doing, GradeFailed


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_users_directory(tmp_path, monkeypatch)


@pytest.mark.parametrize("grader", ["number", "math"])
def test_an_answer_that_cannot_be_graded_is_a_failure_not_a_wrong_completion(grader: str) -> None:
    async def act(pool: GraderPool) -> None:
        grade = await ask(pool, "$3$", answer="?")
        assert isinstance(grade, GradeFailed)
        assert "the answer '?'" in grade.reason

    with_pool(act, grader=grader)


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
        for text, reason in reasons.items():
            assert reason in await ask_and_fail(pool, text)
        assert await ask(pool, "right") == RIGHT

    assert with_pool(act) == []


def test_a_failure_quotes_the_end_of_the_traceback_only() -> None:
    async def act(pool: GraderPool) -> None:
        assert 'my_task.py", line' in await ask_and_fail(pool, "raise")
        assert len(await ask_and_fail(pool, "raise deeply")) < 2100
        assert len(await ask_and_fail(pool, "raise a megabyte")) < 2100

    with_pool(act)


def test_a_grader_that_hangs_is_killed_and_replaced() -> None:
    kinds = ["sleep", "busy", "busy in C", "deaf", "stop"]

    async def act(pool: GraderPool) -> None:
        before = grader_pids()
        for reason in await asyncio.gather(*(ask_and_fail(pool, kind) for kind in kinds)):
            assert "my_task:grade timed out after 1.0 s grading times-tables:6*7" in reason
        await eventually(lambda: not any(is_running(pid) for pid in before))
        assert await ask(pool, "right") == RIGHT

    deaths = with_pool(act, num_workers=len(kinds), timeout_seconds=1.0)
    assert all("was killed by SIGKILL" in death for death in deaths)


@pytest.mark.parametrize(
    ("grader", "completion", "seconds"),
    [
        ("regex", "a" * 60 + "b", 1.0),
        pytest.param("format", "a" * 60 + "b", 1.0, marks=pytest.mark.slow),
        pytest.param("math", "$9^{9^{9^{9}}}$", 3.0, marks=pytest.mark.slow),
    ],
)
def test_a_library_that_hangs_is_killed_like_a_users_function(
    grader: str, completion: str, seconds: float
) -> None:
    async def act(pool: GraderPool) -> None:
        assert "timed out after" in await ask_and_fail(pool, completion)
        assert await ask(pool, "$42$") in (RIGHT, WRONG)

    with_pool(act, grader=grader, pattern="(a+)+$", format_pattern="(a+)+", timeout_seconds=seconds)


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
        assert "my_task:grade died 2 times grading times-tables:6*7" in reason
        assert how in reason
        assert await ask(pool, "right") == RIGHT

    deaths = with_pool(act)
    assert len(deaths) == 2
    assert all(how in death for death in deaths)


def test_a_grade_whose_process_died_once_is_graded_by_the_next() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "die once") == RIGHT

    assert len(with_pool(act)) == 1


SENT_TOGETHER = ["right", "wrong", "half", "wrong", "right"]
PLACES = (0, 2, 5)
"""Of the one that fails among them."""


@pytest.mark.parametrize(
    ("text", "failure", "num_deaths"),
    [
        pytest.param("busy in C", "timed out", 1, marks=pytest.mark.slow),
        ("sleep", "timed out", 1),
        ("segfault", "died 2 times", 2),
        ("raise", "idea", 0),
    ],
)
def test_of_grades_sent_together_only_the_one_that_fails_is_blamed(
    text: str, failure: str, num_deaths: int
) -> None:
    async def act(pool: GraderPool) -> None:
        for _ in range(2):
            expected = [await ask(pool, text) for text in SENT_TOGETHER]  # and the grader is known to be quick
        for place in PLACES:
            texts = [*SENT_TOGETHER[:place], text, *SENT_TOGETHER[place:]]
            grades = await asyncio.gather(*(ask(pool, text) for text in texts))
            failed = grades.pop(place)
            assert isinstance(failed, GradeFailed)
            assert failure in failed.reason
            assert grades == expected
            for _ in range(4):
                assert await ask(pool, "right") == RIGHT  # so that the next are sent together again

    deaths = with_pool(act, timeout_seconds=1.0)
    assert len(deaths) == num_deaths * len(PLACES)


def test_a_grader_that_writes_into_main_changes_no_later_grade() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "patch main") == WRONG
        assert await ask(pool, "wrong") == WRONG
        assert "a bad idea" in await ask_and_fail(pool, "raise")

    assert with_pool(act) == []


def test_a_grade_that_nobody_asked_for_ends_its_process_and_shifts_no_other() -> None:
    async def act(pool: GraderPool) -> None:
        reason = await ask_and_fail(pool, "send a grade of no job")
        assert "died 2 times grading times-tables:6*7: it sent a grade for job 1000000000, which is not" in reason
        for text, grade in (("wrong", WRONG), ("right", RIGHT)) * 2:
            assert await ask(pool, text) == grade

    assert len(with_pool(act)) == 2


@pytest.mark.parametrize("is_together", [False, True])
def test_a_grade_that_is_sent_twice_shifts_no_other(is_together: bool) -> None:
    texts = ["wrong", "send its grade twice", "wrong", "wrong", "right"]

    async def act(pool: GraderPool) -> None:
        for _ in range(8):
            assert await ask(pool, "right") == RIGHT  # and the grader is known to be quick
        if is_together:
            grades = await asyncio.gather(*(ask(pool, text) for text in texts))
        else:
            grades = [await ask(pool, text) for text in texts]
        assert grades == [WRONG, RIGHT, WRONG, WRONG, RIGHT]

    assert len(with_pool(act)) == 1


def test_a_stray_grade_that_comes_once_costs_no_grade() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "send a stray grade once") == RIGHT
        assert await ask(pool, "wrong") == WRONG

    assert len(with_pool(act)) == 1


def test_slow_grades_are_not_sent_together() -> None:
    async def act(pool: GraderPool) -> None:
        for text in [*["right"] * 12, "nap"]:  # known to be quick, then to be slow
            assert await ask(pool, text) == RIGHT
        under_way = asyncio.create_task(ask(pool, "wait for file"))
        queued = asyncio.create_task(ask(pool, "leave a mark"))
        await eventually(lambda: is_written("grading.pid"))
        queued.cancel()
        Path("go").touch()
        assert await under_way == RIGHT
        assert await ask(pool, "right") == RIGHT
        assert not Path("mark").exists()

    with_pool(act)


@pytest.mark.parametrize("killed", ["guard", "worker"])
def test_kill_9_from_outside_while_idle_loses_nothing(killed: str) -> None:
    async def act(pool: GraderPool) -> None:
        [guard] = grader_pids()
        [worker] = children_running("freerun.reward.worker", guard)
        os.kill(guard if killed == "guard" else worker.pid, signal.SIGKILL)
        await eventually(lambda: not is_running(worker.pid))
        assert await ask(pool, "right") == RIGHT

    assert len(with_pool(act)) == 1


def test_kill_9_from_outside_while_grading_loses_nothing() -> None:
    async def act(pool: GraderPool) -> None:
        grade = asyncio.create_task(ask(pool, "wait for file"))
        await eventually(lambda: is_written("grading.pid"))
        assert pool.activities() == {"grader-0": Doing("grading", "times-tables:6*7")}
        os.kill(pid_in("grading.pid"), signal.SIGKILL)
        Path("go").touch()
        assert await grade == RIGHT

    assert len(with_pool(act)) == 1


def test_a_fork_that_comes_back_from_the_grader_does_not_answer_for_it() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "fork that comes back") == WRONG
        assert await ask(pool, "right") == RIGHT

    with_pool(act)


def test_a_cancelled_grade_that_hangs_is_killed_all_the_same() -> None:
    async def act(pool: GraderPool) -> None:
        hanging = asyncio.create_task(ask(pool, "deaf"))
        await eventually(lambda: is_written("deaf.pid"))
        hanging.cancel()
        assert await ask(pool, "right") == RIGHT
        await eventually(lambda: not is_running(pid_in("deaf.pid")))

    with_pool(act, timeout_seconds=1.0)


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

    assert len(with_pool(act)) <= 3
