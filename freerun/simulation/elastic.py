"""Moves GPUs between rollouts and training during a simulated run.

    a worker retires ──► its GPUs belong to the trainer from the next step on
    a worker is added ──► the trainer gives up GPUs with its next step

In both cases the trainer loses `switch_seconds`. A real run moves only rollout workers: the GPUs of a retired
worker are free for other jobs of the cluster, and the number of trainer ranks changes with `--resume`. To
simulate that, use a `trainer_with` that always returns the same costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freerun.simulation.costs import TrainerCosts


@dataclass(frozen=True)
class ElasticSplit:
    """The initial split of a simulated run, and the costs of its moves."""

    num_started: int
    """Number of rollout workers at the start."""
    trainer_with: Callable[[int], TrainerCosts]
    """Returns the trainer's costs beside this many rollout workers."""
    start_seconds: float = 30.0
    """Time for an added worker to load its model."""
    switch_seconds: float = 60.0
    """Extra time of a trainer step that begins with another number of GPUs than the last one."""


class SharingTrainer:
    """Implements `TrainerCosts` with the GPUs that no rollout worker uses."""

    def __init__(self, split: ElasticSplit, num_workers: Callable[[], int]) -> None:
        self._split = split
        self._num_workers = num_workers
        self._last = split.num_started

    def step_seconds(self, lengths: Sequence[int]) -> float:
        before, self._last = self._last, self._num_workers()
        seconds = self._split.trainer_with(self._last).step_seconds(lengths)
        return seconds if self._last == before else seconds + self._split.switch_seconds
