"""One grader process over the lives of its successors: asked, timed, killed, replaced.

Jobs are sent several at once if they take next to no time: passing one alone costs the controller more than most
grades cost here. Each has all the time that a grade may take, from the answer to the one before it.

A grade that takes too long is a failure at once: its process is killed with all that it started. A
process that dies while grading may have been killed by somebody else (kill -9, the kernel out of
memory), so the grade is tried once more in a fresh one; a second death is the grade's own doing. The jobs behind
it had not begun, and go to the fresh process too.
A process that sends a grade for another job than the one under way is killed and counts as dead: what it sends
next might be taken for the grade of yet another job.
A process that cannot be started three times in a row is nobody's bad luck: a `WorkerError` ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, WorkerError
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.processes.patience import within
from freerun.reward.messages import Begin, FromWorker, Graded, Job, Jobs, Ready, Refused
from freerun.types import Grade, GradeFailed

MAX_DEATHS_OF_A_GRADE = 2
MAX_STARTS_IN_ROW = 3
END_SECONDS = 5.0
AT_ONCE_SECONDS = 0.1
"""How long a grade is expected to wait, at most, behind others of its process, though another process is free."""
MAX_AT_ONCE = 8
"""One that takes much longer than those before it holds up the rest of these."""


@dataclass(frozen=True)
class Asked:
    """A job, the prompt that it is about, and where its grade is delivered."""

    job: Job
    key: str
    grade: asyncio.Future[Grade] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, grade: Grade) -> None:
        if not self.grade.done():
            self.grade.set_result(grade)

    def fail(self, error: Exception) -> None:
        if not self.grade.done():
            self.grade.set_exception(error)


class GraderProcess:
    """A grader process and, when it is killed or dies, the one that replaces it; used by one task at a time."""

    def __init__(
        self,
        name: str,
        config: RewardConfig,
        *,
        launcher: Launcher,
        start_seconds: float,
        on_death: Callable[[str, str, bool], None],
    ) -> None:
        self.name = name
        self.doing = "starting"
        self._config = config
        self._launcher = launcher
        self._start_seconds = start_seconds
        self._on_death = on_death
        self._child: Link[FromWorker] | None = None
        self._grading: Link[FromWorker] | None = None
        """The process that has been sent the jobs under way."""
        self._seconds = dict.fromkeys((part.grader for part in config.parts), config.timeout_seconds)
        """How long each grader took, a slow answer forgotten by halves as quick ones come."""
        self._is_lost = False

    @property
    def num_at_once(self) -> int:
        """Jobs that it may be sent together, whichever graders they are for."""
        num_quick = AT_ONCE_SECONDS / max(*self._seconds.values(), AT_ONCE_SECONDS / MAX_AT_ONCE)
        return max(1, int(num_quick))

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.is_alive and not self._is_lost

    async def start(self) -> None:
        """Start the process; a grader it refuses is a `ConfigError`, one that does not come up a `WorkerError`."""
        worker = WorkerJob(self.name, "grader", "freerun.reward.worker")
        child: Link[FromWorker] = await self._launcher.launch(worker, FromWorker)
        self._child = child
        self._is_lost = False
        child.send(Begin(self._config))
        reply = await self._receive(child, self._start_seconds)
        if isinstance(reply, Ready):
            self.doing = "idle"
            return
        problem = await self._problem(child, reply, self._start_seconds)
        if isinstance(reply, Refused):
            raise ConfigError(reply.reason)
        raise WorkerError(f"{self.name} could not start: {problem}")

    async def ensure_alive(self) -> None:
        """Replace the process if it is gone."""
        for starts_left in reversed(range(MAX_STARTS_IN_ROW)):
            if self.is_alive:
                return
            self.doing = "restarting"
            if self._child is not None:
                self._child.kill()  # it has ended; this closes its socket
                self._on_death(self.name, self._child.describe_end(), True)
                self._child = None
            try:
                await self.start()
            except ConfigError as error:
                # It was accepted when the run began: the user's module has changed since.
                raise WorkerError(f"{self.name} could not be replaced: {error}") from error
            except (WorkerError, OSError) as error:  # OSError: the machine has no room for another process
                if starts_left == 0:
                    raise WorkerError(f"{self.name} could not be replaced: {error}") from error

    async def grade(self, asked: Sequence[Asked]) -> None:
        """Answer all, one after another; raises `WorkerError` when the process is gone and cannot be replaced."""
        clock = asyncio.get_running_loop().time
        left = list(asked)
        self._grading = None
        while True:
            if self._grading is None:  # of those that a process has, none may be left out: it answers all of them
                left = [one for one in left if not one.grade.done()]
            if not left:
                break
            began, grader = clock(), left[0].job.grader
            left[0].answer(await self._grade_first(left))
            self._seconds[grader] = max(clock() - began, self._seconds[grader] / 2)
            del left[0]
        self.doing = "idle"

    async def _grade_first(self, asked: Sequence[Asked]) -> Grade:
        """The grade of the first; the process is sent all of them, unless it has them."""
        job, key = asked[0].job, asked[0].key
        death = ""
        for _ in range(MAX_DEATHS_OF_A_GRADE):
            self._grading = child = self._grading or await self._send(asked)
            self.doing = f"grading {key}"
            reply = await self._receive(child, self._config.timeout_seconds)
            if isinstance(reply, Graded) and reply.number == job.number:
                return reply.grade
            self._grading = None
            death = await self._problem(child, reply, self._config.timeout_seconds)
            if isinstance(reply, TimeoutError):
                return GradeFailed(
                    f"{job.grader} timed out after {self._config.timeout_seconds} s grading {key}: {death}"
                )
        return GradeFailed(f"{job.grader} died {MAX_DEATHS_OF_A_GRADE} times grading {key}: {death}")

    async def _send(self, asked: Sequence[Asked]) -> Link[FromWorker]:
        await self.ensure_alive()
        assert self._child is not None
        self._child.send(Jobs(tuple(one.job for one in asked)))
        return self._child

    def kill(self) -> None:
        """End the process now, with all that it started."""
        self.doing = "ended"
        if self._child is not None:
            self._child.kill()

    async def wait_for_end(self) -> None:
        """Return when a killed process is gone."""
        if self._child is not None:
            await self._child.wait(END_SECONDS)

    async def _receive(
        self, child: Link[FromWorker], timeout_seconds: float
    ) -> FromWorker | TimeoutError | WorkerError | None:
        """The process's reply; or that it gave none in time, sent garbage, or (None) is gone."""
        try:
            return await within(timeout_seconds, child.receive)
        except (TimeoutError, WorkerError) as error:
            return error

    async def _problem(self, child: Link[FromWorker], reply: object, timeout_seconds: float) -> str:
        """Make sure that a process which did not do its job is gone, and say what happened to it."""
        self._is_lost = True
        if reply is None:
            # Its socket closed: let it end by itself, so that its own exit status is reported.
            await child.wait(END_SECONDS)
        child.kill()
        await child.wait(END_SECONDS)
        if isinstance(reply, TimeoutError):
            return f"no answer within {timeout_seconds} s; {child.describe_end()}"
        if reply is None:
            return child.describe_end()
        if isinstance(reply, Graded):
            reply = f"it sent a grade for job {reply.number}, which is not the one under way"
        return f"{reply}; {child.describe_end()}"
