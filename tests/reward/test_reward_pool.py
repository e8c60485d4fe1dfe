"""The grader pool: completions in, grades out, each in its place, and an orderly start and end."""

import asyncio
import gc
from pathlib import Path

import pytest
from grader_pools import (
    MAX_TOKENS,
    RIGHT,
    WRONG,
    ask,
    ask_and_fail,
    enter_users_directory,
    eventually,
    grader_pids,
    is_written,
    make_completion,
    make_pool,
    make_prompt,
    pid_in,
    with_pool,
)
from process_table import is_running
from tiny_runs import make_run, recipe_of

from freerun.errors import ConfigError, WorkerError
from freerun.reward.pool import GraderPool
from freerun.session.plan import describe_plan
from freerun.types import Doing, GradeFailed, Reward


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_users_directory(tmp_path, monkeypatch)


CHAIN_SUM = """{"question": "2 + 3", "answer": "5", "metadata": {"source_dataset": "chain_sum"}}"""


@pytest.mark.parametrize(
    ("settings", "right", "wrong", "answer"),
    [
        ({"grader": "number"}, " 42\n", " 43\n", "42"),
        ({"grader": "exact"}, " 42\n", " 42.0\n", "42"),
        ({"grader": "regex", "pattern": r"= (\S+)"}, "6 * 7 = 42", "42", "42"),
        ({"grader": "math"}, r"$\frac{1}{2}$", r"$\frac{1}{3}$", "0.5"),
        ({"grader": "format"}, "<think>6 * 7</think>\n<answer>42</answer>", "42", "42"),
        ({"grader": "reasoning-gym"}, "so it is\n5", "<answer>6</answer>", CHAIN_SUM),
        ({"grader": "my_task:grade"}, "right", "wrong", "42"),
        ({"grader": "my_task:grade_async"}, "right", "wrong", "42"),
    ],
)
def test_every_grader_judges_through_the_pool(
    settings: dict[str, object], right: str, wrong: str, answer: str
) -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, right, answer) == RIGHT
        assert await ask(pool, wrong, answer) == WRONG

    assert with_pool(act, **settings) == []


def test_a_number_is_the_reward_itself_and_rewards_are_configured() -> None:
    async def act(pool: GraderPool) -> None:
        assert await ask(pool, "half") == Reward(0.5, True)
        assert await ask(pool, "right") == Reward(1.0, True)
        assert await ask(pool, "wrong") == Reward(0.0, False)

    with_pool(act, correct=1.0, incorrect=0.0)


def test_a_completion_cut_off_at_the_length_limit_is_wrong_without_running_a_built_in_grader() -> None:
    async def act(pool: GraderPool) -> None:
        assert await pool.grade(make_prompt("no number"), make_completion("42", "length")) == WRONG
        assert "holds no number" in (await ask(pool, "42", "no number")).reason  # type: ignore[union-attr]

    with_pool(act, grader="number", requires_stop=True)


def test_a_cut_off_completion_keeps_the_parts_of_a_users_function_but_the_one_that_decides() -> None:
    async def act(pool: GraderPool) -> None:
        parts = {"solved": -5.0, "brevity": -0.5}
        assert await ask(pool, "parts") == Reward(4.5, True, {"solved": 5.0, "brevity": -0.5})
        assert await pool.grade(make_prompt(), make_completion("parts", "length")) == Reward(-5.5, False, parts)
        assert await pool.grade(make_prompt(), make_completion("right", "length")) == WRONG

    with_pool(act, requires_stop=True)


def test_without_requires_stop_a_cut_off_completion_is_graded() -> None:
    async def act(pool: GraderPool) -> None:
        assert await pool.grade(make_prompt(), make_completion("right", "length")) == RIGHT

    with_pool(act)


def test_a_sum_weighs_its_parts_records_each_and_lets_the_first_decide() -> None:
    async def act(pool: GraderPool) -> None:
        grade = await ask(pool, "half")
        assert grade == Reward(0.5 + 0.2 * -5.0, True, {"my_task:grade": 0.5, "exact": -5.0})
        grade = await ask(pool, "wrong", answer="wrong")
        assert grade == Reward(-5.0 + 0.2 * 5.0, False, {"my_task:grade": -5.0, "exact": 5.0})

    with_pool(act, grader="my_task:grade + 0.2 * exact")


def test_a_part_that_fails_fails_the_grade_under_its_name() -> None:
    async def act(pool: GraderPool) -> None:
        assert (await ask_and_fail(pool, "raise")).startswith("my_task:grade failed:")
        assert "my_task:grade timed out" in await ask_and_fail(pool, "sleep")

    with_pool(act, grader="exact + my_task:grade", timeout_seconds=1.0)


def test_a_function_may_return_parts_by_name() -> None:
    async def act(pool: GraderPool) -> None:
        parts = {"solved": 5.0, "brevity": -0.5, "exact": -5.0}
        assert await ask(pool, "parts") == Reward(0.1 * 4.5 - 5.0, True, parts)

    with_pool(act, grader="0.1 * my_task:grade + exact")


def test_two_parts_of_one_name_fail_the_grade() -> None:
    async def act(pool: GraderPool) -> None:
        assert 'are named "exact"' in await ask_and_fail(pool, "part named exact")

    with_pool(act, grader="my_task:grade + exact")


def test_async_functions_keep_their_event_loop_from_grade_to_grade() -> None:
    async def act(pool: GraderPool) -> None:
        assert [await ask(pool, "same loop") for _ in range(3)] == [RIGHT] * 3

    with_pool(act, grader="my_task:grade_async")


def test_a_long_completion_is_penalised_by_its_tokens() -> None:
    async def act(pool: GraderPool) -> None:
        grades = [
            await pool.grade(make_prompt(), make_completion("right", num_tokens=num_tokens))
            for num_tokens in (MAX_TOKENS - 20, MAX_TOKENS - 5, MAX_TOKENS)
        ]
        assert grades == [
            Reward(5.0 + overlong, True, {"my_task:grade": 5.0, "overlong": overlong})
            for overlong in (0.0, -3.0, -4.0)
        ]

    with_pool(act, overlong_buffer_tokens=20, overlong_penalty=4.0)


def test_a_cut_off_completion_is_wrong_in_the_first_part_and_judged_by_the_others() -> None:
    async def act(pool: GraderPool) -> None:
        cut_off = make_completion("no number", "length", num_tokens=MAX_TOKENS)
        parts = {"number": -5.0, "exact": 5.0, "overlong": -5.0}
        assert await pool.grade(make_prompt("no number"), cut_off) == Reward(-5.0, False, parts)

    with_pool(act, grader="number + exact", requires_stop=True, overlong_buffer_tokens=20)


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
        assert len(grader_pids()) == 2

    with_pool(act, num_workers=2)


def test_a_hanging_grade_does_not_hold_up_the_others() -> None:
    async def act(pool: GraderPool) -> None:
        hanging = asyncio.create_task(ask(pool, "wait for file"))
        await eventually(lambda: Doing("grading", "times-tables:6*7") in pool.activities().values())
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

    assert with_pool(act) == []


def test_closing_fails_the_grades_that_wait_and_refuses_later_ones() -> None:
    async def act(pool: GraderPool) -> None:
        grades = [asyncio.create_task(ask(pool, "deaf")) for _ in range(3)]
        await eventually(lambda: is_written("deaf.pid"))
        await pool.close()
        results = await asyncio.gather(*grades, return_exceptions=True)
        assert all(isinstance(result, WorkerError) and "closed" in str(result) for result in results)
        await eventually(lambda: not is_running(pid_in("deaf.pid")))
        with pytest.raises(WorkerError, match="the grader pool is closed"):
            await ask(pool, "right")

    with_pool(act)


def test_closing_while_parts_of_a_grade_wait_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def act(pool: GraderPool) -> None:
        grade = asyncio.create_task(ask(pool, "deaf"))
        await eventually(lambda: is_written("deaf.pid"))
        await pool.close()
        with pytest.raises(WorkerError, match="closed"):
            await grade

    with_pool(act, grader="my_task:grade + 0.1 * exact")
    gc.collect()
    assert not caplog.records  # of errors that nobody has looked at


def test_a_pool_that_was_not_started_says_so() -> None:
    async def main() -> None:
        with pytest.raises(WorkerError, match="the grader pool is not started"):
            await ask(make_pool(), "right")

    asyncio.run(main())


def start_pool(**settings: object) -> None:
    with_pool(lambda pool: asyncio.sleep(0), **settings)


@pytest.mark.parametrize(
    ("source", "error", "complaint"),
    [
        ("import nobody_has_this", ConfigError, "No module named 'nobody_has_this'"),
        ("def judge(**_): return True", ConfigError, 'has no function "grade"; it has judge'),
        ("import sys; sys.exit(3)", ConfigError, "SystemExit: 3"),
        ("print('so far so good'); import os; os._exit(5)", WorkerError, "exited with status 5"),
    ],
)
def test_a_grader_that_cannot_start_is_reported_at_once_and_not_tried_again(
    source: str, error: type[Exception], complaint: str
) -> None:
    Path("broken_task.py").write_text("open('imports', 'a').write('x')\n" + source)
    with pytest.raises(error, match=complaint):
        start_pool(grader="broken_task:grade")
    assert Path("imports").read_text() == "x"


def test_a_worker_that_cannot_start_quotes_its_log() -> None:
    Path("broken_task.py").write_text("print('so far so good'); import os; os._exit(5)")
    with pytest.raises(WorkerError, match=r"grader-0 could not start[^$]*grader-0.log ends:\nso far so good"):
        start_pool(grader="broken_task:grade")


def test_a_grader_that_never_comes_up_is_given_up() -> None:
    Path("slow_task.py").write_text("import time; time.sleep(1000)")

    async def main() -> None:
        pool = make_pool(grader="slow_task:grade", start_seconds=1.0)
        with pytest.raises(WorkerError, match=r"grader-0 could not start: no answer within 1\.0 s"):
            await pool.start()
        assert grader_pids() == []

    asyncio.run(main())


def test_a_cancelled_start_leaves_no_process() -> None:
    Path("slow_task.py").write_text(
        "import os, time; open('grading.pid', 'w').write(str(os.getpid())); time.sleep(1000)"
    )

    async def main() -> None:
        start = asyncio.create_task(make_pool(grader="slow_task:grade").start())
        await eventually(lambda: is_written("grading.pid"))
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await eventually(lambda: not is_running(pid_in("grading.pid")))

    asyncio.run(main())


def test_an_unsendable_prompt_fails_its_caller_alone() -> None:
    async def act(pool: GraderPool) -> None:
        with pytest.raises(UnicodeEncodeError):
            await ask(pool, "\udc80")
        assert await ask(pool, "right") == RIGHT

    with_pool(act)


def test_an_unknown_grader_is_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="unknown grader"):
        make_pool(grader="nubmer")
    assert not Path("logs").exists()


def test_a_dry_run_finds_a_function_that_cannot_be_imported(tmp_path: Path) -> None:
    recipe = recipe_of(make_run(tmp_path), "--reward.grader", "number + 0.1 * nobody:grade")
    with pytest.raises(ConfigError, match="importing nobody failed with ModuleNotFoundError"):
        describe_plan(recipe)
    assert "graders: 1 x (number + my_task:grade)" in describe_plan(
        recipe_of(tmp_path / "tiny.toml", "--reward.grader", "number + my_task:grade")
    )
