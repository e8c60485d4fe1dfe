"""Requests of a session to the controller, on the agent worker's side: completions and grades.

    episode ── sample, grade ──► Call, AskGrade ──► controller ──► Called, GradeGiven ──► the episode continues

The session's clock is stopped while it waits.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from freerun.chat.session import SampleRequest
from freerun.rollout.clock import SessionClock
from freerun.types import Completion, Grade
from freerun.workers import agent_messages as m

_Send = Callable[[m.FromAgent], None]


class AskingSession:
    """The pending requests of one session."""

    def __init__(self, number: int, clock: SessionClock, send: _Send) -> None:
        self.number = number
        self._clock = clock
        self._send = send
        self._asked: dict[tuple[type[m.ToAgent], int], asyncio.Future[Any]] = {}
        self._gradings = itertools.count()

    async def sample(self, request: SampleRequest) -> tuple[Completion, ...]:
        """Implements `chat.session.Sample`; cancelling it aborts the call in the engine."""
        try:
            completions: tuple[Completion, ...] = await self._ask(
                m.Call(number=self.number, request=request), (m.Called, request.call)
            )
        except asyncio.CancelledError:
            self._send(m.CancelCall(number=self.number, call=request.call))
            raise
        return completions

    async def grade(self, text: str) -> Grade:
        """The grade that the run's graders give to this text."""
        grading = next(self._gradings)
        grade: Grade = await self._ask(
            m.AskGrade(number=self.number, grading=grading, text=text), (m.GradeGiven, grading)
        )
        return grade

    def take_in(self, answer: m.Called | m.GradeGiven) -> None:
        """Deliver an answer; its request may have been abandoned."""
        key, result = (
            ((m.Called, answer.call), answer.completions)
            if isinstance(answer, m.Called)
            else ((m.GradeGiven, answer.grading), answer.grade)
        )
        asked = self._asked.get(key)
        if asked is not None and not asked.done():
            asked.set_result(result)

    async def _ask(self, question: m.FromAgent, key: tuple[type[m.ToAgent], int]) -> Any:
        self._asked[key] = answer = asyncio.get_running_loop().create_future()
        try:
            self._send(question)
            with self._clock.stopped():
                return await answer
        finally:
            del self._asked[key]
