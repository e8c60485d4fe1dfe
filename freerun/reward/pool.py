"""The grader pool: completions in, grades out, through processes that can be killed.

    grade() ──► queue ──► one task per process ──► grader process (one grade at a time)
       ▲                          │
       └────── future ◄───────────┘

- A grade is one job for each part of `reward.grader`, one after another in the same process; what is wrong
  whatever a grader says (cut off, with `reward.requires_stop`) and what needs none (length) is decided here.
- The time a grader may take is wall clock, and holds whatever it does: the process is killed.
- A failure of any part is a failure of the grade: a `GradeFailed` with its reason, never a reward
  (invariant 8).
- A caller that gives up (cancellation) leaves the pool as it was: a grade that is still queued is
  skipped, one that is under way ends or times out by itself.
- When a process cannot be replaced, every waiting and later `grade` raises the `WorkerError`: there is
  nothing left to wait for.

It does not know what a grader computes, nor when failures are too many: the controller counts those. Every
process that had to be replaced is reported to `on_death`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from freerun.config.reward import RewardConfig
from freerun.errors import WorkerError
from freerun.processes.link import Launcher
from freerun.reward.grader_process import GraderProcess
from freerun.reward.graders import check_graders
from freerun.reward.messages import Job
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Grade, GradeFailed, Prompt, Reward


@dataclass(frozen=True)
class _Waiting:
    """A completion in the queue and where its grade is delivered."""

    prompt: Prompt
    completion: Completion
    grade: asyncio.Future[Grade] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BaseException) -> None:
        if not self.grade.done():
            self.grade.set_exception(error)


class GraderPool:
    """`reward.num_workers` grader processes behind one queue; implements `protocols.Grader`."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        max_completion_tokens: int,
        launcher: Launcher,
        start_seconds: float,
        on_death: Callable[[str, str, bool], None],
    ) -> None:
        check_graders(config)
        self.num_graded = 0
        self._config = config
        self._max_completion_tokens = max_completion_tokens
        self._processes = [
            GraderProcess(
                f"grader-{index}",
                config,
                launcher=launcher,
                start_seconds=start_seconds,
                on_death=on_death,
            )
            for index in range(config.num_workers)
        ]
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._refusal = "the grader pool is not started"

    def activities(self) -> dict[str, str]:
        """What each grader process is doing, for people."""
        return {process.name: process.doing for process in self._processes}

    async def start(self) -> None:
        """Start all processes; raises `ConfigError` or `WorkerError`, and then leaves none behind."""
        try:
            results = await asyncio.gather(*(p.start() for p in self._processes), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        except BaseException:
            await self.close()
            raise
        self._refusal = ""
        self._tasks = [asyncio.create_task(self._serve(process)) for process in self._processes]

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        """Judge the completion when a process is free; raises only if there will be none."""
        if self._refusal:
            raise WorkerError(self._refusal)
        waiting = _Waiting(prompt, completion)
        self._queue.put_nowait(waiting)
        grade = await waiting.grade
        self.num_graded += 1
        return grade

    async def close(self) -> None:
        """End all processes and fail the grades that wait; returns when no process is left."""
        self._refuse("the grader pool is closed")
        for task in self._tasks:
            task.cancel()
        for process in self._processes:
            process.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.wait_for_end() for process in self._processes))

    async def _serve(self, process: GraderProcess) -> None:
        """Pass jobs to one process for as long as it can be kept alive."""
        try:
            while True:
                await process.ensure_alive()
                waiting = await self._queue.get()
                if not waiting.grade.done():
                    await self._deliver(process, waiting)
        except WorkerError as error:
            self._refuse(str(error))

    async def _deliver(self, process: GraderProcess, waiting: _Waiting) -> None:
        try:
            grade = await self._grade_parts(process, waiting.prompt, waiting.completion)
        except asyncio.CancelledError:
            waiting.fail(WorkerError(f"the grader pool was closed while grading {waiting.prompt.key}"))
            raise
        except WorkerError as error:
            waiting.fail(error)
            raise
        except Exception as error:
            # A job that cannot even be sent (text that is not Unicode) is its caller's problem alone.
            waiting.fail(error)
        else:
            if not waiting.grade.done():
                waiting.grade.set_result(grade)

    async def _grade_parts(self, process: GraderProcess, prompt: Prompt, completion: Completion) -> Grade:
        """The weighted sum of what each grader says, or the failure of the first that fails."""
        rewards: dict[str, Reward] = {}
        is_cut_off = self._config.requires_stop and completion.finish_reason == "length"
        for _, grader in self._config.parts:
            is_wrong = is_cut_off and not rewards
            if is_wrong and ":" not in grader:  # only a function of the user's may have parts of its own
                rewards[grader] = Reward(self._config.incorrect, False)
                continue
            job = Job(grader=grader, prompt=prompt.text, completion=completion.text, answer=prompt.answer)
            grade = await process.grade(job, prompt.key)
            if isinstance(grade, GradeFailed):
                return grade
            rewards[grader] = as_wrong(grade, self._config) if is_wrong else grade
        overlong = overlong_value(len(completion.token_ids), self._max_completion_tokens, self._config)
        return weigh(rewards, self._config, overlong=overlong)

    def _refuse(self, reason: str) -> None:
        """Fail every grade that waits, now and later."""
        self._refusal = reason
        while not self._queue.empty():
            self._queue.get_nowait().fail(WorkerError(reason))
