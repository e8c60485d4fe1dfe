"""The grader pool: completions in, grades out, through processes that can be killed.

    grade() ──► queue of jobs ──► one task per process ──► grader process (one job after another)
       ▲                                  │
       └────── future of the job ◄────────┘

- A grade is one job for each part of `reward.grader`. What no grader has to decide is decided here: a cut-off
  completion is wrong (`reward.requires_stop`), and a long one is penalised.
- The pool owns the futures. A process only turns jobs into grades and never sees who waits for them.
- A part that fails fails the grade: a `GradeFailed` with its reason, never a reward (invariant 8).
- A cancelled caller leaves the pool as it was: its queued jobs are skipped; one that a process already has ends or
  times out by itself.
- When a process cannot be replaced, every waiting and later `grade` raises `WorkerError`.

The pool does not know what a grader computes, nor how many failures are too many: the controller counts them.
Every process that had to be replaced is reported to `on_death`.
"""

import asyncio
import itertools
import math

from freerun.config.reward import RewardConfig
from freerun.config.user_code import is_user_code
from freerun.errors import WorkerError
from freerun.processes.link import Launcher
from freerun.processes.supervision import OnDeath, Supervisor, start_all
from freerun.reward.grader_process import GraderProcess
from freerun.reward.graders import check_graders
from freerun.reward.messages import Job, job_of
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Doing, Grade, GradeFailed, Prompt, Reward, encode


class GraderPool:
    """`reward.num_workers` grader processes behind one queue; implements `protocols.Grader`."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        max_completion_tokens: int,
        launcher: Launcher,
        start_seconds: float,
        on_death: OnDeath,
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
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Grade]] = {}
        """By the number of the job; a job that is not in it has no caller any more."""
        self._numbers = itertools.count()
        self._refusal = "the grader pool is not started"
        self._supervisor = Supervisor(on_loss=lambda error: self._refuse(str(error) or repr(error)))

    def activities(self) -> dict[str, Doing]:
        return {process.name: process.doing for process in self._processes}

    async def start(self) -> None:
        """Start all processes; raises `ConfigError` or `WorkerError`, and then leaves none behind."""
        await start_all((process.start() for process in self._processes), self.close)
        self._refusal = ""
        for process in self._processes:
            self._supervisor.start(self._serve(process))

    async def close(self) -> None:
        """End all processes and fail the grades that wait; returns when no process is left."""
        self._refuse("the grader pool is closed")
        for process in self._processes:
            process.doing = Doing("ended")
        await self._supervisor.close([p.link for p in self._processes if p.link is not None])

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        """Grade the completion when a process is free; raises only if there will be none."""
        if self._refusal:
            raise WorkerError(self._refusal)
        grade = await self._grade_parts(prompt, completion)
        self.num_graded += 1
        return grade

    async def _grade_parts(self, prompt: Prompt, completion: Completion) -> Grade:
        """The weighted sum of the grades of all parts, or the failure of the first that fails."""
        is_cut_off = self._config.requires_stop and completion.finish_reason == "length"
        rewards: dict[str, Reward] = {}
        graders = [part.grader for part in self._config.parts]
        if is_cut_off and not is_user_code(graders[0]):  # a user's function may return other parts too
            rewards[graders.pop(0)] = Reward(self._config.incorrect, False)
        jobs = [self._job(grader, prompt, completion) for grader in graders]
        try:
            for job, grading in [(job, self._ask(job)) for job in jobs]:
                grade = await grading
                if isinstance(grade, GradeFailed):
                    return grade
                is_wrong = is_cut_off and not rewards
                rewards[job.grader] = as_wrong(grade, self._config) if is_wrong else grade
        finally:
            for job in jobs:
                self._waiting.pop(job.number, None)
        overlong = overlong_value(len(completion.token_ids), self._max_completion_tokens, self._config)
        return weigh(rewards, self._config, overlong=overlong)

    def _job(self, grader: str, prompt: Prompt, completion: Completion) -> Job:
        job = job_of(next(self._numbers), grader, prompt, completion)
        encode(job)  # text that is not Unicode fails its own caller, not the jobs sent with it
        return job

    def _ask(self, job: Job) -> asyncio.Future[Grade]:
        self._waiting[job.number] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(job)
        return self._waiting[job.number]

    async def _serve(self, process: GraderProcess) -> None:
        """Pass jobs to one process for as long as it can be kept alive."""
        jobs: list[Job] = []
        while True:
            await process.ensure_alive()
            jobs = [job for job in jobs or await self._take(process) if job.number in self._waiting]
            async for grade in process.grade(tuple(jobs)):
                grading = self._waiting.get(jobs.pop(0).number)
                if grading is not None and not grading.done():
                    grading.set_result(grade)

    async def _take(self, process: GraderProcess) -> list[Job]:
        taken = [await self._queue.get()]
        share = math.ceil((1 + self._queue.qsize()) / len(self._processes))
        while len(taken) < min(share, process.num_at_once):
            taken.append(self._queue.get_nowait())
        return taken

    def _refuse(self, reason: str) -> None:
        """Fail every grade that waits, now and later."""
        self._refusal = reason
        for grading in self._waiting.values():
            if not grading.done():
                grading.set_exception(WorkerError(reason))
                grading.exception()  # mark it as retrieved: of several parts only the first is awaited
