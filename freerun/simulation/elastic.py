"""GPUs that move between rollouts and training while a run is simulated.

    a worker retires ──► its GPUs are the trainer's from the next step on
    a worker is added ──► the trainer gives up GPUs with its next step

Both cost the trainer `switch_seconds`. A real run moves only rollout workers: the GPUs of a retired one are free
for other jobs of the cluster, and the number of trainer ranks changes with `--resume`. A `trainer_with` that
always returns the same costs simulates that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freerun.simulation.costs import TrainerCosts


@dataclass(frozen=True)
class ElasticSplit:
    """How a simulated run begins, and what its moves cost."""

    num_started: int
    """Rollout workers at the start."""
    trainer_with: Callable[[int], TrainerCosts]
    """The trainer beside so many rollout workers."""
    start_seconds: float = 30.0
    """For a worker that is added to load its model."""
    switch_seconds: float = 60.0
    """For the trainer to begin a step with more or fewer GPUs than the last."""


class SharingTrainer:
    """Implements `TrainerCosts`: it trains with the GPUs that no rollout worker has."""

    def __init__(self, split: ElasticSplit, num_workers: Callable[[], int]) -> None:
        self._split = split
        self._num_workers = num_workers
        self._last = split.num_started

    def step_seconds(self, lengths: Sequence[int]) -> float:
        before, self._last = self._last, self._num_workers()
        seconds = self._split.trainer_with(self._last).step_seconds(lengths)
        return seconds if self._last == before else seconds + self._split.switch_seconds
