"""The agent pool: plays sessions in processes that can be killed, and returns their sequences.

    run() ──► queue ──► a process with a free seat ──► agent worker (many sessions at once)
      ▲                                                     │
      └───────────── the session's future ◄─────────────────┘

- A session waits until a process has a free seat; each has `rollout.sessions_per_worker`. Sessions of an
  evaluation have the same number of separate seats, like the engine's slots: neither kind delays the other.
- The least busy process gets the next session.
- Cancelling a caller aborts its session and the session's requests to the engines.
- When a process cannot be replaced, `wait_for_loss` raises.

The pool does not know what episodes do, nor what happens to a failed session; `rollout/sessions.py` does.
"""

import itertools
from collections import deque

from freerun.chat.session import Sample, SampleRequest
from freerun.config.recipe import RuntimeConfig
from freerun.processes.link import Launcher
from freerun.processes.supervision import OnDeath, Supervisor, start_all
from freerun.rollout.sessions import GradeText, PlayedSession, SessionJob
from freerun.types import Completion, Doing
from freerun.workers.agent_messages import StartAgents
from freerun.workers.agent_process import AgentProcess
from freerun.workers.agent_session import AgentSession
from freerun.workers.lockstep import Lockstep


class AgentPool:
    """`rollout.num_workers` agent processes; implements `rollout.sessions.SessionRunner`."""

    def __init__(
        self,
        start: StartAgents,
        *,
        launcher: Launcher,
        runtime: RuntimeConfig,
        on_death: OnDeath,
        is_synchronous: bool,
    ) -> None:
        self._num_seats = start.rollout.sessions_per_worker
        self._processes = [
            AgentProcess(f"agent-{index}", start, launcher=launcher, runtime=runtime, on_death=on_death)
            for index in range(start.rollout.num_workers)
        ]
        self._waiting: dict[bool, deque[AgentSession]] = {False: deque(), True: deque()}
        """Sessions that wait for a seat, by `is_evaluation`."""
        self._numbers = itertools.count()
        self._lockstep = Lockstep() if is_synchronous else None
        self._supervisor = Supervisor()
        self.wait_for_loss = self._supervisor.wait_for_loss
        """Never returns; raises when a process that cannot be replaced is lost."""

    def activities(self) -> dict[str, Doing]:
        """What each process is doing."""
        return {process.name: process.doing for process in self._processes}

    async def start(self) -> None:
        """Start all processes; if one fails, end them all and raise `ConfigError` or `WorkerError`."""
        await start_all((process.start() for process in self._processes), self.close)
        for process in self._processes:
            self._supervisor.start(process.serve())
        self._supervisor.check_often(self._check)

    async def close(self) -> None:
        """End all processes; returns when none is left."""
        await self._supervisor.close([p.link for p in self._processes if p.link is not None])

    async def run(self, job: SessionJob, *, sample: Sample, grade: GradeText) -> PlayedSession:
        """Play the session once a seat is free for it."""
        session = AgentSession(next(self._numbers), job, sample=self._in_lockstep(job.number, sample), grade=grade)
        self._waiting[job.is_evaluation].append(session)
        try:
            self._seat_waiting()
            return await session.ended
        finally:
            self._leave(session)

    def _in_lockstep(self, number: int, sample: Sample) -> Sample:
        lockstep = self._lockstep
        if lockstep is None:
            return sample

        async def sample_in_turn(request: SampleRequest) -> tuple[Completion, ...]:
            await lockstep.wait(number, request.call)
            return await sample(request)

        return sample_in_turn

    def _seat_waiting(self) -> None:
        for is_evaluation, waiting in self._waiting.items():
            while waiting and (process := self._find_seat(is_evaluation)) is not None:
                session = waiting.popleft()
                if self._lockstep is not None:
                    self._lockstep.begin(session.job.number)
                process.play(session)

    def _find_seat(self, is_evaluation: bool) -> AgentProcess | None:
        """The least busy process with a free seat."""
        free = [
            process
            for process in self._processes
            if not process.is_worn_out and process.num_sessions(is_evaluation=is_evaluation) < self._num_seats
        ]
        return min(free, key=lambda process: len(process.sessions), default=None)

    def _leave(self, session: AgentSession) -> None:
        waiting = self._waiting[session.job.is_evaluation]
        if session in waiting:
            waiting.remove(session)
        for process in self._processes:
            process.drop(session)
        if self._lockstep is not None:
            self._lockstep.end(session.job.number)
        self._seat_waiting()

    def _check(self) -> None:
        for process in self._processes:
            process.check()
        self._seat_waiting()  # the seat is in a process that was replaced
