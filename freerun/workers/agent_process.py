"""One agent process and its successors: start, assign sessions, watch, kill, replace.

- Episodes are user code. A process may die, be stopped, or hang: blocking code holds its event loop.
  It is replaced as often as needed; three failed starts in a row are a `WorkerError`, which ends the run.
- Sessions of a lost process start again in its successor, with the same random numbers. A session fails when its
  third process dies: the session may have killed them.
- The process itself ends sessions at their limits. If it does not, its event loop hangs: the process is killed,
  and the session that holds the loop is cut off (`AgentSession.cut_off`).
- A process in which too much user code hangs gets no more sessions, and is replaced when its last one has ended.
"""

from freerun.config.recipe import RuntimeConfig
from freerun.errors import ConfigError, WorkerError
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.processes.patience import awake_clock, within
from freerun.processes.supervision import OnDeath, bury, end, start_again
from freerun.rollout.sessions import PlayedSession, SessionFailedError
from freerun.types import Doing
from freerun.workers import agent_messages as m
from freerun.workers.agent_session import AgentSession

MAX_DEATHS = 3
LATE_SHARE, LATE_SECONDS = 0.15, 5.0
"""How far beyond `rollout.session_seconds` a session may be before its process counts as hanging: an episode that
is out of time gets a tenth of the limit to finish (`rollout/episode_run.py`).
"""
RECENT_SECONDS = 3.0
"""How long a `LoopHeld` message, sent every second, stays valid."""


class AgentProcess:
    """An agent process and, when it is lost, its successors."""

    def __init__(
        self,
        name: str,
        start: m.StartAgents,
        *,
        launcher: Launcher,
        runtime: RuntimeConfig,
        on_death: OnDeath,
    ) -> None:
        self.name = name
        self.link: Link[m.FromAgent] | None = None
        self.sessions: dict[int, AgentSession] = {}
        self.is_worn_out = False
        self._start_message = start
        self._launcher = launcher
        self._runtime = runtime
        self._on_death = on_death
        self._is_ready = False
        self._why_killed = ""
        self._holder: tuple[int | None, float] = (None, 0.0)
        """The session that holds the event loop, and when it was last reported."""

    @property
    def doing(self) -> Doing:
        if not self._is_ready:
            return Doing("restarting")
        return Doing("running", f"{len(self.sessions)} sessions") if self.sessions else Doing("idle")

    def num_sessions(self, *, is_evaluation: bool) -> int:
        return sum(session.job.is_evaluation == is_evaluation for session in self.sessions.values())

    def play(self, session: AgentSession) -> None:
        """Run the session here, or in the successor if no process runs now."""
        self.sessions[session.number] = session
        if self._is_ready:
            self._begin(session)

    def drop(self, session: AgentSession) -> None:
        """Forget a session whose caller is gone or has its result; abort it if it still runs."""
        if self.sessions.get(session.number) is session:
            self._send(m.AbortSession(number=session.number))
            self._remove(session)

    def _remove(self, session: AgentSession) -> None:
        del self.sessions[session.number]
        session.forget_worker()
        self._retire_if_worn_out()

    async def start(self) -> None:
        """Start the process; raises `ConfigError` if it refuses an episode, `WorkerError` if it does not start."""
        worker = WorkerJob(self.name, "agent", "freerun.workers.agent_worker")
        self.link = link = await self._launcher.launch(worker, m.FromAgent)
        link.send(self._start_message)
        seconds = self._runtime.start_seconds
        try:
            reply = await within(seconds, link.receive)
        except (TimeoutError, WorkerError) as error:
            how = await end(link, is_closed=False)
            what = str(error) or f"no answer within {seconds} s"
            raise WorkerError(f"{self.name} could not start: {what}; {how}") from error
        if isinstance(reply, m.AgentsRefused):
            await end(link, is_closed=False)
            raise ConfigError(reply.reason)
        if not isinstance(reply, m.AgentsReady):
            raise WorkerError(f"{self.name} could not start: {await end(link)}")
        self._is_ready, self.is_worn_out, self._why_killed = True, False, ""
        for session in self.sessions.values():
            self._begin(session)

    async def serve(self) -> None:
        """Handle the process's messages for as long as it can be kept alive."""
        while True:
            assert self.link is not None
            try:
                message = await self.link.receive()
            except WorkerError as error:
                self._kill(f"it sent nonsense ({error})")
                message = None
            if message is not None:
                self._take_in(message)
            else:
                await self._replace(self.link)

    def check(self) -> None:
        """Kill the process if it is silent or its event loop hangs; `serve` notices its end and replaces it."""
        if self.link is None or not self._is_ready or self._why_killed:
            return
        if self.link.seconds_silent > self._runtime.silence_seconds:
            self._kill(f"it was silent for {self._runtime.silence_seconds:.0f} s")
        elif (culprit := self._session_that_hangs()) is not None:
            seconds = self._start_message.rollout.session_seconds
            reason = f"a session of {culprit.job.key} hangs beyond rollout.session_seconds = {seconds:g}"
            self._kill(reason)
            culprit.cut_off(reason)

    def _session_that_hangs(self) -> AgentSession | None:
        """The late session to blame: the one that holds the event loop, if any, because it delays the others."""
        holder = self._session_that_holds()
        suspects = self.sessions.values() if holder is None else [holder]
        latest = max(suspects, key=lambda session: session.own_seconds, default=None)
        limit = (1 + LATE_SHARE) * self._start_message.rollout.session_seconds + LATE_SECONDS
        return latest if latest is not None and latest.own_seconds > limit else None

    def _session_that_holds(self) -> AgentSession | None:
        number, heard = self._holder
        is_recent = awake_clock().time() - heard < RECENT_SECONDS
        return self.sessions.get(number) if is_recent and number is not None else None

    def _begin(self, session: AgentSession) -> None:
        session.begin()
        self._send(m.RunSession(number=session.number, job=session.job))

    def _send(self, message: m.ToAgent) -> None:
        if self.link is not None:
            self.link.send(message)

    def _take_in(self, message: m.FromAgent) -> None:
        match message:
            case m.LoopHeld(number=number):
                self._holder = (number, awake_clock().time())
            case m.WornOut():
                self.is_worn_out = True
                self._retire_if_worn_out()
            case m.AgentsReady() | m.AgentsRefused():
                self._kill("it started twice")
            case _ if (session := self.sessions.get(message.number)) is not None:
                self._take_in_of(session, message)

    def _take_in_of(
        self,
        session: AgentSession,
        message: m.Call | m.CancelCall | m.AskGrade | m.SessionDone | m.SessionFailed,
    ) -> None:
        match message:
            case m.Call():
                session.call(message, self._send)
            case m.CancelCall(call=call):
                session.cancel_call(call)
            case m.AskGrade():
                session.grade(message, self._send)
            case m.SessionDone(sequences=sequences, reward=reward, is_truncated=is_truncated):
                session.finish(PlayedSession(sequences=sequences, reward=reward, is_truncated=is_truncated))
                self._remove(session)
            case m.SessionFailed(reason=reason):
                session.fail(SessionFailedError(reason))
                self._remove(session)

    def _retire_if_worn_out(self) -> None:
        if self.is_worn_out and not self.sessions:
            self._kill("too much of its user code hangs beyond its time-outs")

    def _kill(self, why: str) -> None:
        self._why_killed = self._why_killed or why
        if self.link is not None:
            self.link.kill()

    async def _replace(self, link: Link[m.FromAgent]) -> None:
        """Start a successor of a process that is gone; raises `WorkerError` if that fails."""
        self._is_ready = False
        for session in list(self.sessions.values()):
            session.forget_worker()
            session.num_deaths += 1
            if session.num_deaths == MAX_DEATHS:
                session.fail(SessionFailedError(f"{session.job.key}: its agent worker died {MAX_DEATHS} times"))
        why = f"{self._why_killed}; " if self._why_killed else ""
        await bury(link, lambda name, how, is_restarted: self._on_death(name, f"{why}{how}", is_restarted))
        await start_again(self.name, self.start)
