"""The controller's record of one running session; it survives when its worker is replaced.

Tasks of this process answer the session's requests, and end with it. `rollout.session_seconds` limits the
session's own time: the time in which it waits for no answer.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from freerun.chat.sequences import SessionSequence
from freerun.chat.session import Sample, SampleRequest
from freerun.processes.patience import awake_clock
from freerun.rollout.sessions import GradeText, PlayedSession, SessionFailedError, SessionJob
from freerun.types import Completion, Reward
from freerun.workers import agent_messages as m

_Send = Callable[[m.ToAgent], None]


class AgentSession:
    """A session, the future that its caller awaits, and what was sampled for it."""

    def __init__(self, number: int, job: SessionJob, *, sample: Sample, grade: GradeText) -> None:
        self.number = number
        """Number of this attempt, which tells its messages from late ones of an earlier attempt."""
        self.job = job
        self.ended: asyncio.Future[PlayedSession] = asyncio.get_running_loop().create_future()
        self.num_deaths = 0
        """Number of workers that died while they ran the session."""
        self._sample = sample
        self._grade = grade
        self._answers: dict[tuple[type[m.FromAgent], int], asyncio.Task[None]] = {}
        self._sampled: list[tuple[SampleRequest, tuple[Completion, ...]]] = []
        self._clock = awake_clock()
        self.begin()

    def begin(self) -> None:
        """Start from the beginning, in a new worker."""
        self._own_seconds, self._since = 0.0, self._clock.time()
        self._sampled.clear()

    @property
    def own_seconds(self) -> float:
        return self._own_seconds + (0.0 if self._answers else self._clock.time() - self._since)

    def call(self, message: m.Call, send: _Send) -> None:
        """Pass a call on to the policy; the session fails if the policy cannot answer."""

        async def answer() -> None:
            request = message.request
            completions = await self._sample(request)
            self._sampled.append((request, completions))
            send(m.Called(number=self.number, call=request.call, completions=completions))

        self._answer((m.Call, message.request.call), answer())

    def cancel_call(self, call: int) -> None:
        if (answer := self._answers.get((m.Call, call))) is not None:
            answer.cancel()

    def grade(self, message: m.AskGrade, send: _Send) -> None:
        """Pass a text on to the graders; a failed grade is an answer too."""

        async def answer() -> None:
            grade = await self._grade(message.text)
            send(m.GradeGiven(number=self.number, grading=message.grading, grade=grade))

        self._answer((m.AskGrade, message.grading), answer())

    def _answer(self, name: tuple[type[m.FromAgent], int], work: Coroutine[Any, Any, None]) -> None:
        self._own_seconds = self.own_seconds
        task = self._answers[name] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._note_answer(name, task))

    def _note_answer(self, name: tuple[type[m.FromAgent], int], task: asyncio.Task[None]) -> None:
        if self._answers.get(name) is task:
            del self._answers[name]
            self._since = self._clock.time()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def finish(self, played: PlayedSession) -> None:
        if not self.ended.done():
            self.ended.set_result(played)

    def fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def cut_off(self, reason: str) -> None:
        """End the session in place of its worker, which hangs: reward 0 for what was sampled.

        If the session were discarded, the policy could learn to escape a bad reward by hanging. The session's
        tree is lost with the worker, so each call becomes a separate sequence: the same tokens in the same
        contexts.
        """
        if not self._sampled:
            self.fail(SessionFailedError(f"{self.job.key}: {reason}"))
            return
        sequences = tuple(
            SessionSequence(prompt_token_ids=request.token_ids, completion=completion)
            for request, completions in self._sampled
            for completion in completions
        )
        self.finish(PlayedSession(sequences=sequences, reward=Reward(0.0, False), is_truncated=True))

    def forget_worker(self) -> None:
        """Cancel all pending answers: the worker that asked is gone."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.cancel()
        self._since = self._clock.time()
