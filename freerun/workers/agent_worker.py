"""An agent worker: a process that plays many sessions at once, in one event loop.

    reader ── RunSession, Called, GradeGiven ──► event loop [episodes, tools, trees, gateway] ── send ──► parent

It takes nothing from an episode on trust except the reward. An exception becomes data (`rollout/episode_run.py`),
output goes to the log, and programs that an episode leaves running end with this process (`guard.py`). A fork of
this process stops. This process keeps the session's clock; the controller kills a worker whose event loop hangs.
"""

import asyncio
import importlib
import os
import sys
import traceback
from pathlib import Path

from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError
from freerun.processes.garbage import search_less_often
from freerun.processes.guard import leave_guard
from freerun.processes.parent import Parent, run_worker
from freerun.rollout.abandoned import MAX_ABANDONED
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeFailed, run_episode
from freerun.rollout.loading import open_episode, reads_endpoint
from freerun.rollout.sessions import SessionJob
from freerun.rollout.tools import ToolRunner
from freerun.workers import agent_messages as m
from freerun.workers.agent_endpoint import AgentEndpoint, check_web_server
from freerun.workers.asking_session import AskingSession
from freerun.workers.loop_watch import LoopWatch, context_of_session

WORN_OUT = MAX_ABANDONED // 2
"""Number of hanging tools and episodes at which this process asks to be replaced, while it still works."""


class AgentWorker:
    """Translates messages into sessions, and their outcomes into messages."""

    def __init__(self, parent: Parent[m.ToAgent], start: m.StartAgents) -> None:
        self._parent = parent
        self._start = start
        self._renderer = Renderer(
            Tokenizer.load(Path(start.model_directory)),
            history=start.rollout.history,
            use_chat_template=start.uses_chat_template,
        )
        self._limits = SessionLimits(
            max_turns=start.rollout.max_turns,
            max_session_tokens=start.rollout.max_session_tokens,
            max_completion_tokens=start.sampling.max_completion_tokens,
        )
        self._tools = ToolRunner(seconds=start.rollout.tool_seconds)
        self._endpoint = AgentEndpoint(start)
        self._running: dict[int, tuple[asyncio.Task[None], AskingSession]] = {}
        self._is_worn_out = False
        self._shows_tools = True

    async def serve(self) -> None:
        """Play sessions until the parent ends this process."""
        loop = asyncio.get_running_loop()
        async with open_episode(self._start.rollout) as episode:
            await self._check()
            self._parent.send(m.AgentsReady())
            LoopWatch(loop, lambda number: self._parent.send(m.LoopHeld(number=number)))
            self._parent.pass_on(lambda message: loop.call_soon_threadsafe(self._take_in, message, episode))
            await loop.create_future()

    async def _check(self) -> None:
        """Check early what sessions would otherwise fail on later; raises if something is unusable."""
        if self._start.rollout.command:
            self._endpoint.open()
        elif reads_endpoint(self._start.rollout):
            check_web_server()
        if not self._renderer.is_plain:
            self._shows_tools = (await self._renderer.traits()).shows_tools

    def _take_in(self, message: m.ToAgent, episode: Episode) -> None:
        match message:
            case m.RunSession(number=number, job=job):
                clock = SessionClock(self._start.rollout.session_seconds)
                asking = AskingSession(number, clock, self._parent.send)
                play = self._play(episode, job, asking, clock)
                task = asyncio.get_running_loop().create_task(play, context=context_of_session(number))
                self._running[number] = task, asking
            case m.AbortSession(number=number):
                if number in self._running:
                    self._running[number][0].cancel()
            case m.Called(number=number) | m.GradeGiven(number=number):
                if number in self._running:
                    self._running[number][1].take_in(message)
            case m.StartAgents():
                raise AssertionError("an agent worker is started once")

    async def _play(self, episode: Episode, job: SessionJob, asking: AskingSession, clock: SessionClock) -> None:
        session = ChatSession(self._renderer, asking.sample, self._limits)
        try:
            with self._endpoint.of_session(session) as endpoint:
                policy = Policy(
                    session=session,
                    name=self._start.model_name,
                    endpoint=endpoint,
                    system=self._start.system_prompt,
                    tools=self._tools,
                    shows_tools=self._shows_tools,
                )
                outcome = await run_episode(episode, self._task(job, asking), policy, clock)
        finally:
            del self._running[asking.number]
            self._report_wear()
        if isinstance(outcome, EpisodeFailed):
            self._parent.send(m.SessionFailed(number=asking.number, reason=outcome.reason))
        else:
            self._parent.send(
                m.SessionDone(
                    number=asking.number,
                    sequences=outcome.sequences,
                    reward=outcome.reward,
                    is_truncated=outcome.is_truncated,
                )
            )

    def _task(self, job: SessionJob, asking: AskingSession) -> Task:
        return Task(
            text=job.text,
            answer=job.answer,
            row=job.row,
            key=job.key,
            ordinal=job.ordinal,
            sample=job.sample,
            seed=self._start.seed,
            settings=self._start.rollout.arguments,
            is_evaluation=job.is_evaluation,
            grader=asking.grade,
        )

    def _report_wear(self) -> None:
        if not self._is_worn_out and self._tools.abandoned.num_running >= WORN_OUT:
            self._is_worn_out = True
            self._parent.send(m.WornOut())


async def _serve(parent: Parent[m.ToAgent], start: m.StartAgents) -> None:
    try:
        await AgentWorker(parent, start).serve()
    except FreerunError as error:
        traceback.print_exc()
        parent.send(m.AgentsRefused(reason=str(error).encode(errors="replace").decode()))


def serve(parent: Parent[m.ToAgent]) -> None:
    """Run the event loop until the parent is gone, which ends the process."""
    sys.stdout = sys.stderr  # line-buffered: nothing is lost if the process is killed
    start = parent.receive_first(m.StartAgents)
    loop = asyncio.new_event_loop()
    # A fork made by an episode would continue all sessions of this process.
    os.register_at_fork(after_in_child=loop.stop)
    pid, serving = os.getpid(), loop.create_task(_serve(parent, start))
    while not serving.done():
        try:
            loop.run_until_complete(serving)
        except (SystemExit, KeyboardInterrupt):  # from a task that an episode started: the others continue
            traceback.print_exc()
        finally:
            if os.getpid() != pid:
                os._exit(0)


def main() -> None:
    """The main function of an agent worker process."""
    leave_guard()
    search_less_often()
    run_worker(m.ToAgent, serve)


if __name__ == "__main__":
    # Run under its real name: user code may write into __main__ and must not replace names used here.
    importlib.import_module("freerun.workers.agent_worker").main()
