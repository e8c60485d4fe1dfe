"""One grader process and its successors: assign jobs, time, kill, replace.

- Quick jobs are sent several at once: passing a single job costs the controller more than most grades take. Each
  job has the full time limit, counted from the answer to the job before it.
- A job that takes too long fails at once: its process is killed with everything it started.
- A process that dies while grading may have been killed from outside (kill -9, the kernel out of memory), so the
  job is tried once more in a new process; a second death is attributed to the job.
- The jobs queued behind a failed one have not begun and are sent again.
- A process that sends a grade for a job other than the current one is killed and counts as dead: its next message
  might be mistaken for the grade of yet another job.
- Three failed starts in a row are a `WorkerError`, which ends the run.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, WorkerError
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.processes.patience import within
from freerun.processes.supervision import OnDeath, bury, end, start_again
from freerun.reward import messages as m
from freerun.reward.grader_counts import GraderCounts
from freerun.types import Doing, Grade, GradeFailed

AT_ONCE_SECONDS = 0.1
"""How long a job may be expected to wait behind others of its process while another process is free."""
MAX_AT_ONCE = 8
"""Limits how many jobs wait behind one that takes much longer than earlier jobs."""


class GraderProcess:
    """A grader process and its successors after a kill or death; used by one task at a time."""

    def __init__(
        self,
        name: str,
        configs: Sequence[RewardConfig],
        *,
        launcher: Launcher,
        start_seconds: float,
        on_death: OnDeath,
    ) -> None:
        self.name = name
        self.doing = Doing("starting")
        self.link: Link[m.FromWorker] | None = None
        self.ready = m.Ready()
        """What its graders need to be given; known once the process has started."""
        self._configs = tuple(configs)
        self._launcher = launcher
        self._start_seconds = start_seconds
        self._on_death = on_death
        self._timeout_seconds = self._configs[0].timeout_seconds
        graders = (part.grader for config in self._configs for part in config.parts)
        self._seconds = dict.fromkeys(graders, self._timeout_seconds)
        """Estimated seconds per job of each grader; a slow job counts half with each later quick one."""
        self._is_lost = False
        self.counts = GraderCounts(name, lambda: asyncio.get_running_loop().time())
        self._died_on: int | None = None
        """Number of the job during which the last process died."""

    @property
    def num_at_once(self) -> int:
        """How many jobs may be sent together, for any mix of graders."""
        num_quick = AT_ONCE_SECONDS / max(*self._seconds.values(), AT_ONCE_SECONDS / MAX_AT_ONCE)
        return max(1, int(num_quick))

    async def start(self) -> None:
        """Start the process; raises `ConfigError` if it refuses a grader, `WorkerError` if it does not start."""
        worker = WorkerJob(self.name, "grader", "freerun.reward.worker")
        self.link = await self._launcher.launch(worker, m.FromWorker)
        self._is_lost = False
        self.link.send(m.Begin(self._configs))
        reply = await self._receive(self.link, self._start_seconds)
        if not isinstance(reply, m.Ready):
            how = await self._end(self.link, reply, self._start_seconds)
            if isinstance(reply, m.ConfigRefused):
                raise ConfigError(reply.reason)
            raise WorkerError(f"{self.name} could not start: {how}")
        self.ready = reply
        self.counts.note_started()
        self.doing = Doing("idle")

    async def ensure_alive(self) -> None:
        """Replace the process if it is gone; raises `WorkerError` if that fails."""
        if self.link is None or not self.link.is_alive or self._is_lost:
            await start_again(self.name, self._start_successor)

    async def _start_successor(self) -> None:
        self.doing = Doing("restarting")
        if self.link is not None:
            await bury(self.link, self._on_death)
            self.link = None
        await self.start()

    async def grade(self, jobs: Sequence[m.Job]) -> AsyncIterator[tuple[Grade, ...]]:
        """The grades of each job, in order. Ends early if the process is lost: send the rest again."""
        if not jobs:
            return
        await self.ensure_alive()
        assert self.link is not None
        self.link.send(m.Jobs(tuple(jobs)))
        for job in jobs:
            if (grades := await self._grade(job, self.link)) is not None:
                yield grades
            if self._is_lost:
                return
        self.doing = Doing("idle")

    async def _grade(self, job: m.Job, link: Link[m.FromWorker]) -> tuple[Grade, ...] | None:
        """The grades of the current job; None if the process died and the job may be tried once more."""
        self.doing = Doing("grading", job.key)
        clock, limit = asyncio.get_running_loop().time, self._timeout_seconds
        began = clock()
        num_completions = len(job.completions)
        with self.counts.job() as answers:
            reply = await self._receive(link, limit)
            if isinstance(reply, m.Graded):
                answers.append(reply.grades)
        self._seconds[job.grader] = max(clock() - began, self._seconds[job.grader] / 2)
        if isinstance(reply, m.Graded) and (reply.number, len(reply.grades)) == (job.number, num_completions):
            return reply.grades
        how = await self._end(link, reply, limit)
        if isinstance(reply, TimeoutError):
            failed = GradeFailed(f"{job.grader} timed out after {limit} s grading {job.key}: {how}")
            return (failed,) * num_completions
        if job.number == self._died_on:
            return (GradeFailed(f"{job.grader} died 2 times grading {job.key}: {how}"),) * num_completions
        self._died_on = job.number
        return None

    async def _receive(
        self, link: Link[m.FromWorker], timeout_seconds: float
    ) -> m.FromWorker | TimeoutError | WorkerError | None:
        """The process's reply; an error if it is late or malformed; None if the process is gone."""
        try:
            return await within(timeout_seconds, link.receive)
        except (TimeoutError, WorkerError) as error:
            return error

    async def _end(self, link: Link[m.FromWorker], reply: object, timeout_seconds: float) -> str:
        """End a process that gave the wrong reply; returns a description of what happened."""
        self._is_lost = True
        how = await end(link, is_closed=reply is None)
        if reply is None:
            return how
        if isinstance(reply, TimeoutError):
            reply = f"no answer within {timeout_seconds} s"
        elif isinstance(reply, m.Graded):
            reply = f"it sent a grade for job {reply.number}, which is not the one under way"
        return f"{reply}; {how}"
