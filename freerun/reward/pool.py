"""The grader pool: completions in, grades out, through processes that can be killed.

    grade() ──► queue ──► one task per process ──► grader process (one grade after another)
       ▲                          │
       └────── future ◄───────────┘

- A grade is one job for each part of `reward.grader`; what is wrong whatever a grader says (cut off, with
  `reward.requires_stop`) and what needs none (length) is decided here.
- A process that is free gets its share of the jobs that wait, but no more than it does in a moment.
- The time a grader may take is wall clock, and holds whatever it does: the process is killed.
- A failure of any part is a failure of the grade: a `GradeFailed` with its reason, never a reward
  (invariant 8).
- A caller that gives up (cancellation) leaves the pool as it was: a job that is still queued is
  skipped, one that a process has got ends or times out by itself.
- When a process cannot be replaced, every waiting and later `grade` raises the `WorkerError`: there is
  nothing left to wait for.

It does not know what a grader computes, nor when failures are too many: the controller counts those. Every
process that had to be replaced is reported to `on_death`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable

from freerun.config.reward import RewardConfig
from freerun.errors import WorkerError
from freerun.processes.link import Launcher
from freerun.reward.grader_process import Asked, GraderProcess
from freerun.reward.graders import check_graders
from freerun.reward.messages import Job
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Grade, GradeFailed, Prompt, Reward, encode


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
        self._queue: asyncio.Queue[Asked] = asyncio.Queue()
        self._numbers = itertools.count()
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
        grade = await self._grade_parts(prompt, completion)
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

    async def _grade_parts(self, prompt: Prompt, completion: Completion) -> Grade:
        """The weighted sum of what each grader says, or the failure of the first that fails."""
        is_cut_off = self._config.requires_stop and completion.finish_reason == "length"
        rewards: dict[str, Reward] = {}
        asked: dict[str, Asked] = {}
        for index, (_, grader) in enumerate(self._config.parts):
            if is_cut_off and index == 0 and ":" not in grader:  # only a user's function may have parts of its own
                rewards[grader] = Reward(self._config.incorrect, False)
            else:
                job = Job(
                    number=next(self._numbers),
                    grader=grader,
                    prompt=prompt.text,
                    completion=completion.text,
                    answer=prompt.answer,
                )
                encode(job)  # text that is not Unicode is its caller's problem, not that of what is sent with it
                asked[grader] = Asked(job, prompt.key)
        for one in asked.values():
            self._queue.put_nowait(one)
        try:
            for grader, one in asked.items():
                grade = await one.grade
                if isinstance(grade, GradeFailed):
                    return grade
                is_wrong = is_cut_off and not rewards
                rewards[grader] = as_wrong(grade, self._config) if is_wrong else grade
        finally:
            for one in asked.values():
                one.grade.cancel()  # nobody waits for it any more, nor for its error
        overlong = overlong_value(len(completion.token_ids), self._max_completion_tokens, self._config)
        return weigh(rewards, self._config, overlong=overlong)

    async def _serve(self, process: GraderProcess) -> None:
        """Pass jobs to one process for as long as it can be kept alive."""
        asked: list[Asked] = []
        try:
            while True:
                await process.ensure_alive()
                asked = await self._take(process)
                await process.grade(asked)
        except asyncio.CancelledError:
            for one in asked:
                one.fail(WorkerError(f"the grader pool was closed while grading {one.key}"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            for one in asked:
                one.fail(error)
            self._refuse(str(error))

    async def _take(self, process: GraderProcess) -> list[Asked]:
        """What the process is to do next."""
        taken = [await self._queue.get()]
        share = math.ceil((1 + self._queue.qsize()) / len(self._processes))
        while len(taken) < min(share, process.num_at_once):
            taken.append(self._queue.get_nowait())
        return taken

    def _refuse(self, reason: str) -> None:
        """Fail every grade that waits, now and later."""
        self._refusal = reason
        while not self._queue.empty():
            self._queue.get_nowait().fail(WorkerError(reason))
