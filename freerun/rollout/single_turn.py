"""The default workflow: one request per sample of a prompt; each completion is graded as soon as it is finished.

    prompt ─► sample 0: generate ─► grade ─┐
              sample 1: generate ─► grade ─┼─► group
              sample 2: generate ──────────┘

A finished sample leaves its slot to another prompt while the rest of the group is still decoded. A grader that
compares the completions of a prompt gets them when all are finished.

If one sample fails the others are not aborted: what an engine of a synchronous run batches together then
depends only on the seed. There are no retries here: a workflow returns a whole group or raises, and the
controller handles it.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from freerun.config.recipe import SamplingConfig
from freerun.errors import RolloutError
from freerun.protocols import Generator, Grader
from freerun.types import Completion, Grade, GradeFailed, Prompt, Request, Sampling, T, Trajectory


class GradingFailed(RolloutError):  # noqa: N818 - an outcome, like GradeFailed
    """A completion could not be graded, so its group has no rewards to compare."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The grader's explanation."""


def to_sampling(config: SamplingConfig, stop_token_ids: tuple[int, ...]) -> Sampling:
    """The sampling settings of a recipe, for a model with these end tokens."""
    return Sampling(
        max_completion_tokens=config.max_completion_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        stop_strings=config.stop,
        stop_token_ids=stop_token_ids,
    )


class SingleTurn:
    """Samples the completions of a prompt and has them graded.

    All workflows of a run share `request_ids`, typically one `itertools.count()`. Ordinals are not unique here: a
    prompt that is requeued or evaluated again is a new request with the same ordinal.
    """

    def __init__(self, sampling: Sampling, *, num_samples: int, request_ids: Iterator[int]) -> None:
        self._num_samples = num_samples
        self._request_ids = request_ids
        self._sampling = sampling

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]:
        samples = range(self._num_samples)
        if grader.compares(prompt):
            completions = await _all(self._complete(prompt, sample, generator) for sample in samples)
            return _trajectories(prompt, completions, await grader.grade_group(prompt, completions))
        graded = await _all(self._complete_and_grade(prompt, sample, generator, grader) for sample in samples)
        return _trajectories(prompt, [completion for completion, _ in graded], [grade for _, grade in graded])

    async def _complete_and_grade(
        self, prompt: Prompt, sample: int, generator: Generator, grader: Grader
    ) -> tuple[Completion, Grade]:
        completion = await self._complete(prompt, sample, generator)
        return completion, await grader.grade(prompt, completion)

    async def _complete(self, prompt: Prompt, sample: int, generator: Generator) -> Completion:
        completions = await generator.generate(self._request(prompt, sample))
        if len(completions) != 1:
            raise RolloutError(
                f"{prompt.key}: the generator returned {len(completions)} completions for a request of 1; "
                "a Generator must return all samples"
            )
        return completions[0]

    def _request(self, prompt: Prompt, sample: int) -> Request:
        return Request(
            request_id=next(self._request_ids),
            ordinal=prompt.ordinal,
            prompt_token_ids=prompt.token_ids,
            num_samples=1,
            sample=sample,
            sampling=self._sampling,
        )


async def _all(samples: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run them concurrently; when all have ended, return their results or raise the first exception."""
    results: list[T] = []
    for ended in await asyncio.gather(*samples, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
        results.append(ended)
    return results


def _trajectories(
    prompt: Prompt, completions: Sequence[Completion], grades: Sequence[Grade]
) -> tuple[Trajectory, ...]:
    trajectories = []
    kept = msgspec.structs.replace(prompt, row={}) if prompt.row else prompt
    for sample, (completion, grade) in enumerate(zip(completions, grades, strict=True)):
        if isinstance(grade, GradeFailed):
            raise GradingFailed(
                f"{prompt.key}: grading sample {sample} failed: {grade.reason}", reason=grade.reason
            )
        trajectories.append(Trajectory(prompt=kept, sample=sample, completion=completion, reward=grade))
    return tuple(trajectories)
