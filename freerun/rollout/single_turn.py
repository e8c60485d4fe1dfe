"""The default workflow: one request per prompt, one grade per completion.

No retries here: a workflow returns a whole group or raises. The controller decides what a failure means.
"""

import asyncio
from collections.abc import Iterator

from freerun.config.recipe import SamplingConfig
from freerun.errors import RolloutError
from freerun.protocols import Generator, Grader
from freerun.types import Completion, Grade, GradeFailed, Prompt, Request, Sampling, Trajectory


class GradingFailed(RolloutError):  # noqa: N818 - an outcome, like GradeFailed
    """A completion could not be graded, so its group has no rewards to compare."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The grader's explanation."""


def to_sampling(config: SamplingConfig, stop_token_ids: tuple[int, ...]) -> Sampling:
    """How a recipe draws tokens from a model with these end tokens."""
    return Sampling(
        max_completion_tokens=config.max_completion_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        stop_strings=config.stop,
        stop_token_ids=stop_token_ids,
    )


class SingleTurn:
    """Samples a group of completions for a prompt and grades them concurrently.

    All workflows of a run share `request_ids`, typically one `itertools.count()`. Ordinals are not unique here: a
    prompt that is requeued or evaluated again is a new request with the same ordinal.
    """

    def __init__(self, sampling: Sampling, *, num_samples: int, request_ids: Iterator[int]) -> None:
        self._num_samples = num_samples
        self._request_ids = request_ids
        self._sampling = sampling

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]:
        completions = await generator.generate(self._request(prompt))
        if len(completions) != self._num_samples:
            raise RolloutError(
                f"{prompt.key}: the generator returned {len(completions)} completions for a request of "
                f"{self._num_samples}; a Generator must return all samples"
            )
        grades = await asyncio.gather(*(grader.grade(prompt, completion) for completion in completions))
        return _trajectories(prompt, completions, grades)

    def _request(self, prompt: Prompt) -> Request:
        return Request(
            request_id=next(self._request_ids),
            ordinal=prompt.ordinal,
            prompt_token_ids=prompt.token_ids,
            num_samples=self._num_samples,
            sampling=self._sampling,
        )


def _trajectories(
    prompt: Prompt, completions: tuple[Completion, ...], grades: list[Grade]
) -> tuple[Trajectory, ...]:
    trajectories = []
    for sample, (completion, grade) in enumerate(zip(completions, grades, strict=True)):
        if isinstance(grade, GradeFailed):
            raise GradingFailed(
                f"{prompt.key}: grading sample {sample} failed: {grade.reason}", reason=grade.reason
            )
        trajectories.append(Trajectory(prompt=prompt, sample=sample, completion=completion, reward=grade))
    return tuple(trajectories)
