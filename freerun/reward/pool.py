"""The grader pool: grades completions in processes that can be killed.

    grade() ──► queue of jobs ──► one task per process ──► grader process (one job after another)
       ▲                                  │
       └────── future of the job ◄────────┘

- A grade is one job for each part of `reward.grader`; a part that compares the completions of a prompt is one job
  for all of them. Rules that need no grader are applied here: a cut-off completion is wrong
  (`reward.requires_stop`), and a long one is penalised.
- The pool owns the futures. A process only turns jobs into grades and never sees the callers.
- If one part fails, the grade fails: a `GradeFailed` with its reason, never a reward (invariant 8).
- Cancelling a caller does not affect the pool: its queued jobs are skipped; a job that a process already has ends
  or times out by itself.
- When a process cannot be replaced, every waiting and later `grade` raises `WorkerError`, and so does
  `wait_for_loss`, which ends the run before it uses up more prompts.

The pool does not know what a grader computes, nor how many failures are too many: the controller counts them.
Every replaced process is reported to `on_death`.
"""

import asyncio
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from freerun.config.reward import RewardConfig, with_grader
from freerun.config.user_code import is_user_code
from freerun.errors import DataError, WorkerError
from freerun.events.events import GraderReport
from freerun.processes.link import Launcher
from freerun.processes.supervision import OnDeath, Supervisor, start_all
from freerun.reward.grader_process import GraderProcess
from freerun.reward.graders import check_graders
from freerun.reward.messages import Job, Ready, job_of
from freerun.reward.user_call import group_refusal
from freerun.reward.weighted_sum import as_wrong, overlong_value, weigh
from freerun.types import Completion, Doing, Grade, GradeFailed, Prompt, Reward, encode

_Answer = asyncio.Future[tuple[Grade, ...]]
"""The grades of a job's completions."""


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
        own_graders: Iterable[str] = (),
        judges_sessions: bool = False,
    ) -> None:
        """`own_graders` are the graders of prompts that are not graded by `reward.grader`."""
        self.num_graded = 0
        self._configs = {grader: with_grader(config, grader) for grader in ("", *own_graders)}
        """Reward settings by `Prompt.grader`."""
        for each in self._configs.values():
            check_graders(each)
        self._judges_sessions = judges_sessions
        self._max_completion_tokens = max_completion_tokens
        self._processes = [
            GraderProcess(
                f"grader-{index}",
                tuple(self._configs.values()),
                launcher=launcher,
                start_seconds=start_seconds,
                on_death=on_death,
            )
            for index in range(config.num_workers)
        ]
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._waiting: dict[int, _Answer] = {}
        """Pending answers by job number; a missing job has no caller any more."""
        self._numbers = itertools.count()
        self._ready = Ready()
        self._refusal = "the grader pool is not started"
        self._supervisor = Supervisor(on_loss=lambda error: self._refuse(str(error) or repr(error)))
        self.wait_for_loss = self._supervisor.wait_for_loss
        """Never returns; raises when a process cannot be replaced."""

    def activities(self) -> dict[str, Doing]:
        return {process.name: process.doing for process in self._processes}

    def reports(self, seconds: float) -> list[GraderReport]:
        """Reports of what each process has done, at this time of the run's clock."""
        return [report for process in self._processes for report in process.counts.reports(seconds)]

    async def start(self) -> None:
        """Start all processes; if one fails, end them all and raise `ConfigError` or `WorkerError`."""
        await start_all((process.start() for process in self._processes), self.close)
        self._ready = self._processes[0].ready
        if self._judges_sessions and self._ready.of_groups:
            await self.close()
            raise group_refusal(self._ready.of_groups[0])
        self._refusal = ""
        for process in self._processes:
            self._supervisor.start(self._serve(process))

    async def close(self) -> None:
        """End all processes and fail waiting grades; returns when no process is left."""
        self._refuse("the grader pool is closed")
        for process in self._processes:
            process.doing = Doing("ended")
        await self._supervisor.close([p.link for p in self._processes if p.link is not None])

    def compares(self, prompt: Prompt) -> bool:
        if not self._ready.of_groups:
            return False
        return any(self._compares(part.grader) for part in self._configs[prompt.grader].parts)

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        """Grade the completion when a process is free; raises only if there will never be one."""
        if self.compares(prompt):
            return (await self.grade_group(prompt, [completion]))[0]
        self._check_open()
        graded = await self._grade_parts(prompt, completion, {})
        self.num_graded += 1
        return graded

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Grade]:
        """Grade the completions of a prompt concurrently; parts that compare them get all at once."""
        self._check_open()
        graders = [part.grader for part in self._configs[prompt.grader].parts]
        comparing = [self._job(grader, prompt, completions) for grader in graders if self._compares(grader)]
        compared = {job.grader: self._ask(job) for job in comparing}

        async def grade(index: int) -> Grade:
            own = {name: (answer, index) for name, answer in compared.items()}
            graded = await self._grade_parts(prompt, completions[index], own)
            self.num_graded += 1
            return graded

        try:
            return await asyncio.gather(*map(grade, range(len(completions))))
        finally:
            self._forget(comparing)

    async def _grade_parts(
        self, prompt: Prompt, completion: Completion, compared: Mapping[str, tuple[_Answer, int]]
    ) -> Grade:
        """The weighted sum of the grades of all parts, or the first failure."""
        config = self._configs[prompt.grader]
        is_cut_off = config.requires_stop and completion.finish_reason == "length"
        rewards: dict[str, Reward] = {}
        graders = [part.grader for part in config.parts]
        if is_cut_off and not is_user_code(graders[0]):  # a user's function may return other parts too
            rewards[graders.pop(0)] = Reward(config.incorrect, False)
        jobs = [self._job(grader, prompt, [completion]) for grader in graders if grader not in compared]
        answers = {**compared, **{job.grader: (self._ask(job), 0) for job in jobs}}
        try:
            for grader in graders:
                answer, index = answers[grader]
                grade = (await answer)[index]
                if isinstance(grade, GradeFailed):
                    return grade
                is_wrong = is_cut_off and not rewards
                rewards[grader] = as_wrong(grade, config) if is_wrong else grade
        finally:
            self._forget(jobs)
        overlong = overlong_value(len(completion.token_ids), self._max_completion_tokens, config)
        return weigh(rewards, config, overlong=overlong)

    def _check_open(self) -> None:
        if self._refusal:
            raise WorkerError(self._refusal)

    def _compares(self, grader: str) -> bool:
        return grader in self._ready.of_groups

    def _job(self, grader: str, prompt: Prompt, completions: Sequence[Completion]) -> Job:
        takes_row = grader in self._ready.with_rows
        job = job_of(next(self._numbers), grader, prompt, completions, takes_row=takes_row)
        try:
            encode(job)  # text that is not Unicode fails its own caller, not the jobs sent with it
        except (TypeError, NotImplementedError, OverflowError) as error:
            raise DataError(
                f"{prompt.key}: its row cannot be sent to {grader} ({error}); use texts, numbers of 64 "
                'bits, lists and dicts, or leave out the parameter "row"'
            ) from error
        return job

    def _ask(self, job: Job) -> _Answer:
        self._waiting[job.number] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(job)
        return self._waiting[job.number]

    def _forget(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._waiting.pop(job.number, None)

    async def _serve(self, process: GraderProcess) -> None:
        """Pass jobs to one process for as long as it can be kept alive."""
        jobs: list[Job] = []
        while True:
            await process.ensure_alive()
            jobs = [job for job in jobs or await self._take(process) if job.number in self._waiting]
            async for grades in process.grade(tuple(jobs)):
                answer = self._waiting.get(jobs.pop(0).number)
                if answer is not None and not answer.done():
                    answer.set_result(grades)

    async def _take(self, process: GraderProcess) -> list[Job]:
        taken = [await self._queue.get()]
        share = math.ceil((1 + self._queue.qsize()) / len(self._processes))
        while len(taken) < min(share, process.num_at_once):
            taken.append(self._queue.get_nowait())
        return taken

    def _refuse(self, reason: str) -> None:
        """Fail every waiting and later grade."""
        self._refusal = reason
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(WorkerError(reason))
                answer.exception()  # mark it as retrieved: only the first of several parts is awaited
