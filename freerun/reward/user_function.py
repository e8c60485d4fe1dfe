"""Reward functions of the user: imported by name in a grader process, or called in threads of this program.

A function named "module:function" is imported and checked before the first grade. Importing runs the user's
code, so it happens in a grader process, never in the controller. All async functions of a process run on one event
loop, so an HTTP client created in one grade can be reused in the next. Grades still run one at a time; raise
`reward.num_workers` for more.

A function that only the calling program has (a lambda, a notebook cell) cannot be imported by another process:

    FunctionGrader.grade() ──► one of reward.num_workers slots ──► a new thread ──► the function

A thread cannot be killed. If the function takes too long, its grade fails after `reward.timeout_seconds`, but
the thread runs until the function returns or the program ends. All threads share the program's interpreter lock
with the controller.
"""

import asyncio
import contextlib
import inspect
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from freerun.config.reward import RewardConfig
from freerun.config.user_code import import_named
from freerun.errors import ConfigError
from freerun.events.events import GraderReport
from freerun.reward.grader_counts import GraderCounts
from freerun.reward.messages import job_of
from freerun.reward.user_call import GRADER_SETTING, UserCall, call_of, group_refusal
from freerun.reward.verdict import LoadedGrader, judge
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Doing, Grade, GradeFailed, Prompt

RewardFunction = Callable[..., Any]
"""Called with the parameters it names (`user_call.py`); returns a verdict (`verdict.py`) or a list of verdicts."""


def import_function(name: str) -> LoadedGrader:
    """Import a function as a grader, called with the parameters it names."""
    _, function = import_named(name, setting=GRADER_SETTING)

    def finished(**arguments: Any) -> Any:
        verdict = function(**arguments)
        return _event_loop().run(verdict) if inspect.iscoroutine(verdict) else verdict

    return _loaded(call_of(name, function), finished)


def _loaded(call: UserCall, function: Callable[..., Any]) -> LoadedGrader:
    return LoadedGrader(lambda job: call.verdicts(function, job), is_group=call.is_group, takes_row=call.takes_row)


@cache
def _event_loop() -> asyncio.Runner:
    """The event loop of all async functions of this process."""
    return asyncio.Runner()


def check_function(name: str, function: RewardFunction) -> None:
    """Raise if the function cannot be called from a thread."""
    call_of(name, function)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f'config: the reward function "{name}" is async, and would run in a thread of this program; make it a '
            "plain function, or put it into a module that grader processes can import"
        )


class FunctionGrader:
    """Calls the function in threads of this process; implements `protocols.Grader`."""

    def __init__(
        self,
        function: RewardFunction,
        config: RewardConfig,
        *,
        max_completion_tokens: int,
        judges_sessions: bool = False,
    ) -> None:
        self.num_graded = 0
        self._config = config
        self._max_completion_tokens = max_completion_tokens
        self._name = config.parts[0].grader
        self._places = asyncio.Semaphore(config.num_workers)
        self._numbers = itertools.count()
        check_function(self._name, function)
        self._grader = _loaded(call_of(self._name, function), function)
        if judges_sessions and self._grader.is_group:
            raise group_refusal(self._name)

        self._counts = GraderCounts("reward", time.monotonic, num_at_once=config.num_workers)
        self._counts.note_started()

    def activities(self) -> dict[str, Doing]:
        return {}

    def reports(self, seconds: float) -> list[GraderReport]:
        """Reports of what the threads have done, at this time of the run's clock."""
        return self._counts.reports(seconds)

    async def start(self) -> None:
        """Do nothing: there is nothing to start."""

    async def close(self) -> None:
        """Do nothing: threads that still run cannot be stopped."""

    def compares(self, prompt: Prompt) -> bool:
        return self._grader.is_group

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        return (await self.grade_group(prompt, [completion]))[0]

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Grade]:
        if self._grader.is_group:
            return list(await self._grade(prompt, completions))
        each = await asyncio.gather(*(self._grade(prompt, [completion]) for completion in completions))
        return [grade for grades in each for grade in grades]

    async def _grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Grade]:
        async with self._places:
            with self._counts.job() as answers:
                grades = await self._judge(prompt, completions)
                answers.append(grades)
        self.num_graded += len(completions)
        return [self._settled(grade, completion) for grade, completion in zip(grades, completions, strict=True)]

    def _settled(self, grade: Grade, completion: Completion) -> Grade:
        """Apply the rules that need no function: for cut-off completions and for long ones."""
        if isinstance(grade, GradeFailed):
            return grade
        if self._config.requires_stop and completion.finish_reason == "length":
            grade = as_wrong(grade, self._config)
        overlong = overlong_value(len(completion.token_ids), self._max_completion_tokens, self._config)
        return weigh({self._name: grade}, self._config, overlong=overlong)

    async def _judge(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Grade, ...]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Grade, ...]] = loop.create_future()
        job = job_of(next(self._numbers), self._name, prompt, completions, takes_row=self._grader.takes_row)

        def settle(grades: tuple[Grade, ...]) -> None:
            if not answer.done():
                answer.set_result(grades)

        def work() -> None:
            grades = judge(self._grader, job, self._config)
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
                loop.call_soon_threadsafe(settle, grades)

        # A daemon thread: a function that hangs must not keep the program from exiting.
        threading.Thread(target=work, name=f"freerun reward {job.number}", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, self._config.timeout_seconds)
        except TimeoutError:
            failed = GradeFailed(
                f"{self._name} took longer than reward.timeout_seconds = {self._config.timeout_seconds:g}; it "
                "runs in a thread of this program, which cannot be ended"
            )
            return (failed,) * len(completions)
