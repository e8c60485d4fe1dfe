"""A reward function of the calling program, which no other process could import: a lambda, one of a notebook cell.

    grade() ──► one of reward.num_workers places ──► a thread of its own ──► the function

It implements what a run needs of `pool.GraderPool`. The differences: a function that takes too long cannot be
killed. Its grade fails after `reward.timeout_seconds`, and its thread runs on until the function returns or the
program ends. All threads share the interpreter lock of the program, with each other and with the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable
from typing import Any

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError
from freerun.reward.judge import judge
from freerun.reward.messages import Job
from freerun.reward.user_function import check_call
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Grade, GradeFailed, Prompt

RewardFunction = Callable[..., Any]
"""Called with prompt, completion and answer by keyword; returns a verdict (`verdict.py`)."""


def check_function(name: str, function: RewardFunction) -> None:
    """Refuse a function that a thread cannot call."""
    check_call(name, function)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f'config: the reward function "{name}" is async, and runs in a thread of this program; make it a '
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

    def activities(self) -> dict[str, str]:
        return {}

    async def start(self) -> None:
        """There is nothing to start."""

    async def close(self) -> None:
        """There is nothing that could be ended; what still runs has nobody to answer to."""

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
        job = Job(
            number=next(self._numbers),
            grader=self._name,
            prompt=prompt.text,
            completion=completion.text,
            answer=prompt.answer,
        )

        def settle(grade: Grade) -> None:
            if not answer.done():
                answer.set_result(grade)

        def work() -> None:
            grade = judge(self._call, job, self._config)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run ended meanwhile
                loop.call_soon_threadsafe(settle, grade)

        # A daemon, so that a function that hangs does not keep the program from exiting.
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
