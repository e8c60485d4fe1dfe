"""An evaluation: runs all prompts through a workflow concurrently and collects the results."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freerun.events.events import EvalFinished, PromptResult
from freerun.events.pass_at_k import Estimate, estimate_pass_at_k
from freerun.protocols import Generator, Grader, Workflow
from freerun.types import Prompt, Trajectory, WholeSample, samples_of


@dataclass(frozen=True)
class Attempt:
    """One prompt with its graded completions, or the reason why there are none."""

    prompt: Prompt
    trajectories: tuple[Trajectory, ...] = ()
    failure: Exception | None = None


@dataclass(frozen=True)
class Evaluation:
    """One attempt per prompt, in the order of the prompts."""

    attempts: tuple[Attempt, ...]

    @property
    def groups(self) -> tuple[tuple[Trajectory, ...], ...]:
        """The graded completions of the prompts that did not fail."""
        return tuple(attempt.trajectories for attempt in self.attempts if attempt.trajectories)

    @property
    def _samples(self) -> list[tuple[WholeSample, ...]]:
        return [samples_of(group) for group in self.groups]

    @property
    def failures(self) -> list[Exception]:
        return [attempt.failure for attempt in self.attempts if attempt.failure is not None]

    @property
    def versions(self) -> set[int]:
        """The versions that sampled tokens of this evaluation."""
        return {version for group in self.groups for t in group for version in t.completion.versions.tolist()}

    def pass_at(self, k: int) -> Estimate:
        """pass@k over the prompts that could be graded."""
        counts = [(len(samples), sum(s.reward.is_correct for s in samples)) for samples in self._samples]
        return estimate_pass_at_k(counts, k)

    def prompts(self) -> tuple[PromptResult, ...]:
        return tuple(_result_of(attempt) for attempt in self.attempts)

    def as_event(
        self, *, seconds: float, version: int, num_samples: int, max_kept: int | None = None
    ) -> EvalFinished:
        """The event to emit, with the completions of the first `max_kept` samples of each prompt."""
        accuracy = self.pass_at(1)
        return EvalFinished(
            seconds=seconds,
            version=version,
            accuracy=accuracy.value,
            accuracy_low=accuracy.low,
            accuracy_high=accuracy.high,
            num_prompts=len(self.attempts),
            num_samples=num_samples,
            num_failed=len(self.failures),
            mean_length=_mean([s.num_sampled for samples in self._samples for s in samples]),
            prompts=self.prompts(),
            groups=tuple(
                tuple(trajectory for sample in samples[:max_kept] for trajectory in sample.parts)
                for samples in self._samples
            ),
        )


async def evaluate(
    prompts: Sequence[Prompt],
    workflow: Workflow,
    generator: Generator,
    grader: Grader,
    *,
    on_prompt: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Run all prompts concurrently; a failed rollout is counted, not graded."""

    async def attempt(prompt: Prompt) -> Attempt:
        try:
            return Attempt(prompt, await workflow(prompt, generator, grader))
        except Exception as error:  # noqa: BLE001 - the edge of user code, as in training: a failure is data
            return Attempt(prompt, failure=error)
        finally:
            on_prompt()

    return Evaluation(tuple(await asyncio.gather(*(attempt(prompt) for prompt in prompts))))


def _result_of(attempt: Attempt) -> PromptResult:
    samples = samples_of(attempt.trajectories)
    return PromptResult(
        ordinal=attempt.prompt.ordinal,
        key=attempt.prompt.key,
        num_samples=len(samples),
        num_correct=sum(s.reward.is_correct for s in samples),
        mean_reward=_mean([s.reward.value for s in samples]),
        mean_length=_mean([s.num_sampled for s in samples]),
        failure="" if attempt.failure is None else str(attempt.failure) or type(attempt.failure).__name__,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
