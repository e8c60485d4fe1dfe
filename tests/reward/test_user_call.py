"""What a user's function asks for by the names of its parameters, and what it then gets."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from grader_pools import make_completion, make_pool, make_prompt, with_pool

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, DataError
from freerun.reward.pool import GraderPool
from freerun.reward.user_call import call_of
from freerun.reward.user_function import FunctionGrader
from freerun.types import Completion, Grade, GradeFailed, Prompt, Reward

ROOT = Path(__file__).parents[2]
PROMPT = msgspec.structs.replace(make_prompt(), row={"question": "6 * 7", "level": 3, "tags": ["easy"]})
GROUP = [make_completion("a", num_tokens=3), make_completion("bb", "length", num_tokens=5)]
OWN = """
def all_of_one(prompt, completion, answer, row, finish_reason, num_tokens):
    assert (prompt, answer, row["tags"]) == ("6 * 7 =", "42", ["easy"])
    return {"length": num_tokens, "level": row["level"], "stopped": finish_reason == "stop"}


def rank(completions, num_tokens, finish_reasons):
    longest = max(num_tokens)
    assert finish_reasons.count("length") <= 1
    return [num == longest for num in num_tokens]


def too_few(completions):
    return [1.0]


def rowless(completion):
    return True
"""


def by_function(function: Callable[..., Any], *completions: Completion, prompt: Prompt = PROMPT) -> list[Grade]:
    async def run() -> list[Grade]:
        grader = FunctionGrader(function, RewardConfig(grader="__main__:f"), max_completion_tokens=8)
        return await grader.grade_group(prompt, completions)

    return asyncio.run(run())


def test_a_function_gets_what_it_names_and_nothing_else() -> None:
    seen = []

    def note(num_tokens: int, row: dict[str, Any], tolerance: float = 0.5) -> float:
        seen.append((num_tokens, row["level"], tolerance))
        return 1.0

    assert by_function(note, *GROUP) == [Reward(1.0, True)] * 2
    assert sorted(seen) == [(3, 3, 0.5), (5, 3, 0.5)]


def test_keywords_of_any_name_get_all_there_is() -> None:
    call = call_of("f", lambda **given: given)
    assert (set(call.names), call.is_group) == (
        {"prompt", "answer", "row", "completion", "finish_reason", "num_tokens"},
        False,
    )
    group = call_of("f", lambda completions, **given: given)
    assert set(group.names) == {"prompt", "answer", "row", "completions", "finish_reasons", "num_tokens"}


def test_a_function_of_a_group_is_called_once_and_its_verdicts_keep_their_places() -> None:
    calls = []

    def shortest(completions: list[str]) -> Any:
        calls.append(completions)
        return np.array([1.0 if len(text) == 1 else -1.0 for text in completions])

    assert by_function(shortest, *GROUP) == [Reward(1.0, True), Reward(-1.0, False)]
    assert calls == [["a", "bb"]]


@pytest.mark.parametrize("verdicts", [[1.0], 1.0, {"a": 1.0, "b": 2.0}, "ab"])
def test_a_group_without_a_verdict_for_each_completion_fails_as_a_whole(verdicts: Any) -> None:
    grades = by_function(lambda completions: verdicts, *GROUP)
    assert len(grades) == 2
    for grade in grades:
        assert isinstance(grade, GradeFailed)
        assert "for a group of 2 completions; return a list of 2 verdicts" in grade.reason


def test_a_function_of_a_group_is_refused_for_sessions() -> None:
    with pytest.raises(ConfigError, match="sessions ask for one grade each"):
        FunctionGrader(
            lambda completions: [1.0],
            RewardConfig(grader="__main__:f"),
            max_completion_tokens=8,
            judges_sessions=True,
        )


@pytest.fixture
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own_functions")
def test_grader_processes_are_told_what_their_functions_ask_for() -> None:
    unsendable = msgspec.structs.replace(PROMPT, row={"huge": 10**30})

    async def act(pool: GraderPool) -> None:
        first, second = await pool.grade_group(PROMPT, GROUP)
        assert isinstance(first, Reward)
        assert isinstance(second, Reward)
        assert first.parts == {"own:rank": -5.0, "length": 3.0, "level": 3.0, "stopped": 5.0}
        assert second.parts == {"own:rank": 5.0, "length": 5.0, "level": 3.0, "stopped": -5.0}
        assert (first.is_correct, second.is_correct) == (False, True)
        with pytest.raises(DataError, match=r"row cannot be sent to own:all_of_one .* leave out"):
            await pool.grade(unsendable, GROUP[0])

    assert with_pool(act, grader="own:rank + own:all_of_one") == []


@pytest.mark.usefixtures("own_functions")
def test_a_row_that_is_not_asked_for_is_not_sent_and_short_lists_fail_the_group() -> None:
    unsendable = msgspec.structs.replace(PROMPT, row={"huge": 10**30})

    async def act(pool: GraderPool) -> None:
        grades = await pool.grade_group(unsendable, GROUP)
        assert ["return a list of 2 verdicts" in getattr(grade, "reason", "") for grade in grades] == [True] * 2

    with_pool(act, grader="own:rowless + own:too_few")


@pytest.mark.usefixtures("own_functions")
def test_each_prompt_is_graded_by_its_own_grader() -> None:
    exact = msgspec.structs.replace(PROMPT, grader="exact")

    async def act() -> None:
        pool = make_pool(grader="number", own_graders=("exact",))
        await pool.start()
        try:
            loosely = make_completion("it is 42")
            assert await pool.grade(PROMPT, loosely) == Reward(5.0, True)
            assert await pool.grade(exact, loosely) == Reward(-5.0, False)
        finally:
            await pool.close()

    asyncio.run(act())


@pytest.mark.usefixtures("own_functions")
def test_processes_with_a_function_of_a_group_refuse_sessions_and_leave_nothing() -> None:
    async def act() -> None:
        pool = make_pool(grader="own:rank", judges_sessions=True)
        with pytest.raises(ConfigError, match='"own:rank" asks for the completions of a group'):
            await pool.start()

    asyncio.run(act())


def test_the_functions_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/rewards.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (shown,) = [block for block in blocks if "def closest" in block]
    (tmp_path / "own_rewards.py").write_text(shown)
    monkeypatch.chdir(tmp_path)
    texts = ("40", "45", "no idea")
    group = [make_completion(text, num_tokens=num) for text, num in zip(texts, (2, 2, 9), strict=True)]

    async def act(pool: GraderPool) -> None:
        grades = await pool.grade_group(msgspec.structs.replace(PROMPT, row={"max_words": 1}), group)
        found = [grade.parts for grade in grades if isinstance(grade, Reward)]
        assert [part["own_rewards:closest"] for part in found] == [5.0, -5.0, -5.0]
        assert [part["own_rewards:within_limits"] for part in found] == [5.0, 5.0, -5.0]

    with_pool(act, grader="own_rewards:closest + 0.5 * own_rewards:within_limits")
