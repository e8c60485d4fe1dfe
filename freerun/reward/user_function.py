"""Reward functions of the user: imported by name in a grader process, or called in threads of this program.

A function named "module:function" is imported and checked before the first grade. Importing runs the user's
code, so it happens in a grader process, never in the controller. All async functions of a process run on one
event loop, so an HTTP client made in one grade serves the next. Grades still come one at a time; for more at
once raise `reward.num_workers`.

A function that only the calling program has (a lambda, a notebook cell) cannot be imported by another process:

    FunctionGrader.grade() ──► one of reward.num_workers places ──► a new thread ──► the function

A thread cannot be killed. If the function takes too long, its grade fails after `reward.timeout_seconds` and the
thread runs until the function returns or the program ends. All threads share the program's interpreter lock with
the controller.
"""

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from freerun.config.reward import RewardConfig
from freerun.config.user_code import check_signature, import_named
from freerun.errors import ConfigError
from freerun.reward.messages import job_of
from freerun.reward.verdict import GraderFunction, judge
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Doing, Grade, GradeFailed, Prompt

GRADER_SETTING = "reward.grader"
RewardFunction = Callable[..., Any]
"""Called with prompt, completion and answer by keyword; returns a verdict (`verdict.py`)."""


def import_function(name: str) -> GraderFunction:
    """A grader that calls the function, with prompt, completion and answer by keyword."""
    _, function = import_named(name, setting=GRADER_SETTING)
    check_call(name, function)

    def grade(prompt: str, completion: str, answer: str) -> Any:
        verdict = function(prompt=prompt, completion=completion, answer=answer)
        return _event_loop().run(verdict) if inspect.iscoroutine(verdict) else verdict

    return grade


@cache
def _event_loop() -> asyncio.Runner:
    """The loop of all async functions of this process."""
    return asyncio.Runner()


def check_call(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with what a grader gets."""
    shape, arguments = "grade(prompt, completion, answer)", {"prompt": "", "completion": "", "answer": ""}
    check_signature(function, name=name, setting=GRADER_SETTING, shape=shape, **arguments)


def check_function(name: str, function: RewardFunction) -> None:
    """Refuse a function that a thread cannot call."""
    check_call(name, function)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f'config: the reward function "{name}" is async, and would run in a thread of this program; make it a '
            "plain function, or put it into a module that grader processes can import"
        )


class FunctionGrader:
    """Calls the function in threads of this process; implements `protocols.Grader`."""

    def __init__(self, function: RewardFunction, config: RewardConfig, *, max_completion_tokens: int) -> None:
        self.num_graded = 0
        self._function = function
        self._config = config
        self._max_completion_tokens = max_completion_tokens
        self._name = config.parts[0].grader
        self._places = asyncio.Semaphore(config.num_workers)
        self._numbers = itertools.count()
        check_function(self._name, function)

    def activities(self) -> dict[str, Doing]:
        return {}

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to end: threads that still run cannot be stopped."""

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        async with self._places:
            grade = await self._judge(prompt, completion)
        self.num_graded += 1
        if isinstance(grade, GradeFailed):
            return grade
        if self._config.requires_stop and completion.finish_reason == "length":
            grade = as_wrong(grade, self._config)
        overlong = overlong_value(len(completion.token_ids), self._max_completion_tokens, self._config)
        return weigh({self._name: grade}, self._config, overlong=overlong)

    async def _judge(self, prompt: Prompt, completion: Completion) -> Grade:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Grade] = loop.create_future()
        job = job_of(next(self._numbers), self._name, prompt, completion)

        def settle(grade: Grade) -> None:
            if not answer.done():
                answer.set_result(grade)

        def work() -> None:
            grade = judge(self._call, job, self._config)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run ended meanwhile
                loop.call_soon_threadsafe(settle, grade)

        # A daemon: a function that hangs must not keep the program from exiting.
        threading.Thread(target=work, name=f"freerun reward {job.number}", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, self._config.timeout_seconds)
        except TimeoutError:
            return GradeFailed(
                f"{self._name} took longer than reward.timeout_seconds = {self._config.timeout_seconds:g}; it "
                "runs in a thread of this program, which cannot be ended"
            )

    def _call(self, prompt: str, completion: str, answer: str) -> Any:
        return self._function(prompt=prompt, completion=completion, answer=answer)
