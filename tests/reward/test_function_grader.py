"""A reward function in threads of this process: what it does wrong is a failed grade, never a reward."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError
from freerun.reward.user_function import FunctionGrader
from freerun.types import Completion, Grade, GradeFailed, Prompt, Reward, Span

PROMPT = Prompt(ordinal=0, key="a:1", text="2 + 2 =", answer="4", token_ids=np.array([1], dtype=np.int32))


def completion(text: str, finish_reason: Any = "stop") -> Completion:
    return Completion(
        token_ids=np.array([1], dtype=np.int32),
        logprobs=np.array([-1.0], dtype=np.float32),
        spans=(Span(0, 1),),
        finish_reason=finish_reason,
        text=text,
    )


def grade(function: Callable[..., Any], given: Completion, **config: Any) -> Grade:
    async def run() -> Grade:
        grader = FunctionGrader(function, RewardConfig(grader="__main__:f", **config), max_completion_tokens=8)
        return await grader.grade(PROMPT, given)

    return asyncio.run(run())


def is_right(prompt: str, completion: str, answer: str) -> bool:
    return completion == answer


def test_verdicts_are_worth_what_they_are_in_a_grader_process() -> None:
    assert grade(is_right, completion("4")) == Reward(5.0, True)
    assert grade(is_right, completion("5")) == Reward(-5.0, False)
    assert grade(is_right, completion("4", "length"), requires_stop=True) == Reward(-5.0, False)
    assert grade(lambda **texts: 0.25, completion("4")) == Reward(0.25, True)


def leave(**texts: str) -> float:
    raise SystemExit


def fail(**texts: str) -> float:
    raise ValueError("cannot judge")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (fail, "cannot judge"),
        (leave, "SystemExit"),
        (lambda **texts: "good", "return True, False, a number"),
        (lambda **texts: float("nan"), "return True, False, a number"),
    ],
)
def test_exceptions_and_nonsense_are_failed_grades(function: Callable[..., Any], reason: str) -> None:
    result = grade(function, completion("4"))
    assert isinstance(result, GradeFailed)
    assert reason in result.reason


def test_a_function_that_hangs_is_a_failed_grade() -> None:
    is_over = threading.Event()
    result = grade(lambda **texts: is_over.wait(), completion("4"), timeout_seconds=0.05)
    is_over.set()
    assert isinstance(result, GradeFailed)
    assert "took longer than reward.timeout_seconds = 0.05" in result.reason


def test_an_async_function_is_refused() -> None:
    async def judge(prompt: str, completion: str, answer: str) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="is async"):
        grade(judge, completion("4"))
