"""The workflow of sessions: plays a prompt `num_samples` times, each time in a session of several calls.

    prompt ─► session ─► SessionRunner (an episode in an agent worker)
                 ▲            │ asks for completions and grades
                 └────────────┘      ids ─► generator, text ─► grader
    sessions ─► trajectories, one or more parts for each sample

All calls of a session are answered here, in the controller: a worker has no access to generators and graders. A
session's random numbers depend only on its ordinal, sample and calls, so a repeated session gets the same ones.

A session that failed is tried once more; then its group fails. Hitting a limit is not a failure.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from freerun.chat.sequences import SessionSequence
from freerun.chat.session import Sample, SampleRequest
from freerun.errors import RolloutError
from freerun.protocols import Generator, Grader
from freerun.rollout.calls import sample_call
from freerun.types import Completion, Grade, Prompt, Reward, Sampling, Trajectory

GradeText = Callable[[str], Awaitable[Grade]]


class SessionFailedError(RolloutError):
    """A session ended without a reward, which is not the same as a reward of 0."""


class SessionJob(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A session to play: everything that its episode needs to know."""

    number: int
    """Unique among the sessions of a run, evaluations included; engines keep caches under this number."""
    ordinal: int
    key: str
    text: str
    answer: str
    row: dict[str, Any]
    sample: int
    """Index within its group."""
    is_evaluation: bool


class PlayedSession(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A session with its reward."""

    sequences: tuple[SessionSequence, ...]
    reward: Reward
    is_truncated: bool
    """Whether the session reached a limit of turns, tokens or time."""


class SessionRunner(Protocol):
    """Plays sessions."""

    async def run(self, job: SessionJob, *, sample: Sample, grade: GradeText) -> PlayedSession:
        """Play it to its end, calling `sample` and `grade`; raises `SessionFailedError`, or what they raised."""
        ...


class Sessions:
    """Implements `protocols.Workflow`. All workflows of a run share `request_ids` and `numbers`."""

    def __init__(
        self,
        runner: SessionRunner,
        sampling: Sampling,
        *,
        num_samples: int,
        is_evaluation: bool,
        request_ids: Iterator[int],
        numbers: Iterator[int],
    ) -> None:
        self._runner = runner
        self._sampling = sampling
        self._num_samples = num_samples
        self._is_evaluation = is_evaluation
        self._request_ids = request_ids
        self._numbers = numbers

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]:
        sessions = [
            asyncio.create_task(self._play(self._job(prompt, sample), prompt, generator, grader))
            for sample in range(self._num_samples)
        ]
        try:
            played = await asyncio.gather(*sessions)
        finally:
            for session in sessions:  # the sessions of a group that failed or was aborted
                session.cancel()
            await asyncio.gather(*sessions, return_exceptions=True)
        return tuple(
            itertools.chain.from_iterable(
                _trajectories(prompt, sample, session) for sample, session in enumerate(played)
            )
        )

    def _job(self, prompt: Prompt, sample: int) -> SessionJob:
        return SessionJob(
            number=next(self._numbers),
            ordinal=prompt.ordinal,
            key=prompt.key,
            text=prompt.text,
            answer=prompt.answer,
            row=prompt.row,
            sample=sample,
            is_evaluation=self._is_evaluation,
        )

    async def _play(self, job: SessionJob, prompt: Prompt, generator: Generator, grader: Grader) -> PlayedSession:
        sampled: list[Completion] = []

        async def sample(request: SampleRequest) -> tuple[Completion, ...]:
            completions = await sample_call(
                generator,
                request,
                self._sampling,
                ordinal=job.ordinal,
                sample=job.sample,
                session=job.number,
                request_ids=self._request_ids,
            )
            sampled.extend(completions)
            return completions

        async def grade(text: str) -> Grade:
            return await grader.grade(prompt, _as_completion(text, sampled))

        try:
            try:
                return await self._runner.run(job, sample=sample, grade=grade)
            except SessionFailedError:  # an environment that could not be reached may be available again
                sampled.clear()
                return await self._runner.run(job, sample=sample, grade=grade)
        finally:
            generator.end_session(job.number)


def _as_completion(text: str, sampled: Sequence[Completion]) -> Completion:
    """A text to grade, with the tokens that the session has sampled so far and how the last call ended."""
    token_ids = np.concatenate([np.zeros(0, np.int32), *(completion.token_ids for completion in sampled)])
    return Completion(
        token_ids=token_ids,
        logprobs=np.zeros(len(token_ids), np.float32),
        spans=(),
        finish_reason=sampled[-1].finish_reason if sampled else "stop",
        text=text,
    )


def _trajectories(prompt: Prompt, sample: int, session: PlayedSession) -> Iterator[Trajectory]:
    for part, sequence in enumerate(session.sequences):
        completion = sequence.completion
        if session.is_truncated:
            completion = msgspec.structs.replace(completion, finish_reason="length")
        yield Trajectory(
            prompt=msgspec.structs.replace(prompt, token_ids=sequence.prompt_token_ids, row={}),
            sample=sample,
            completion=completion,
            reward=session.reward,
            part=part,
        )
