"""Held-out evaluation: every prompt through a workflow, and what came out, with its uncertainty."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freerun.protocols import Generator, Grader, Workflow
from freerun.types import Prompt, Trajectory


@dataclass(frozen=True)
class Evaluation:
    """The graded groups, in the order of the prompts, and how many could not be graded."""

    groups: list[tuple[Trajectory, ...]]
    num_failed: int

    @property
    def accuracy(self) -> float:
        """Mean over prompts; nan if none could be graded."""
        means = self._means()
        return sum(means) / len(means) if means else math.nan

    @property
    def standard_error(self) -> float:
        """Over prompts: samples of one prompt are not independent. nan for fewer than two."""
        means = self._means()
        if len(means) < 2:
            return math.nan
        variance = sum((value - self.accuracy) ** 2 for value in means) / (len(means) - 1)
        return math.sqrt(variance / len(means))

    @property
    def token_versions(self) -> Counter[int]:
        """How many tokens each version sampled: weights may be loaded while an evaluation runs."""
        versions: Counter[int] = Counter()
        for trajectory in [t for group in self.groups for t in group]:
            for span in trajectory.completion.spans:
                versions[span.version] += span.num_tokens
        return versions

    def most_used_version(self, *, default: int) -> int:
        """The version that sampled most of the tokens."""
        return max(self.token_versions.items(), key=lambda item: item[1], default=(default, 0))[0]

    @property
    def mean_length(self) -> float:
        lengths = [len(trajectory.completion.token_ids) for group in self.groups for trajectory in group]
        return sum(lengths) / len(lengths) if lengths else math.nan

    def _means(self) -> list[float]:
        return [sum(t.reward.is_correct for t in group) / len(group) for group in self.groups]


async def evaluate(
    prompts: Sequence[Prompt],
    workflow: Workflow,
    generator: Generator,
    grader: Grader,
    *,
    on_prompt: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Run all prompts side by side; one whose rollout fails is counted, not graded."""

    async def attempt(prompt: Prompt) -> tuple[Trajectory, ...] | None:
        try:
            return await workflow(prompt, generator, grader)
        except Exception:  # the edge of user code, as in training: a failure is counted
            return None
        finally:
            on_prompt()

    results = await asyncio.gather(*(attempt(prompt) for prompt in prompts))
    groups = [result for result in results if result is not None]
    return Evaluation(groups=groups, num_failed=len(results) - len(groups))
