"""Facts about each trajectory of a step, collected from the passes of all ranks.

A trajectory is in one micro-batch of one rank, and trained on once. A trajectory that was not computed because
its advantage is 0 has no log-weights and no clipped tokens. Without a correction only the first minibatch has
log-weights.

Shapes: L loss tokens (sampled tokens of a micro-batch).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from freerun.trainer.batch import MicroBatch, Rated
from freerun.trainer.ranks import Ranks, gather_floats
from freerun.types import TrainedTrajectory

NUM_FACTS = 4
"""Facts per trajectory: index in the batch, sampled tokens, mean advantage, whether it has log-weights."""


class TrajectoryMeter:
    """Collects the results of passes for the trajectories of this rank."""

    def __init__(self, rated: Sequence[Rated]) -> None:
        self._advantages = {r.place: float(r.advantages.mean()) if len(r.advantages) else 0.0 for r in rated}
        self._rows: list[NDArray[np.float64]] = []
        self._is_clipped: list[NDArray[np.float64]] = []
        """1 for each clipped token, else 0, in the order of passes."""

    def add_pass(self, micro_batch: MicroBatch, is_clipped_L: Tensor | None, *, has_weights: bool) -> None:
        lengths = np.array(micro_batch.trajectory_lengths, np.int64)
        if not lengths.size:
            return
        begins = np.cumsum(lengths) - lengths
        advantages = np.add.reduceat(micro_batch.advantages_L.double().numpy(force=True), begins) / lengths
        none = np.zeros(lengths.sum())
        self._is_clipped.append(none if is_clipped_L is None else is_clipped_L.double().numpy(force=True))
        has = np.full(len(lengths), float(has_weights))
        self._rows += list(np.stack([micro_batch.indices, lengths, advantages, has], axis=1))

    def trajectories(
        self, ranks: Ranks, log_weights: NDArray[np.float64], num_trajectories: int
    ) -> tuple[TrainedTrajectory, ...]:
        """One result per trajectory of the batch; `log_weights` are those of all ranks, in the order of passes."""
        rows = gather_floats(ranks, self._rows).reshape(-1, NUM_FACTS)
        is_clipped = gather_floats(ranks, self._is_clipped)
        nothing, nowhere = np.empty(0, np.float16), np.empty(0, np.int32)
        trained = [
            TrainedTrajectory(log_weights=nothing, advantage=self._advantages[index], clipped=nowhere)
            for index in range(num_trajectories)
        ]
        with np.errstate(over="ignore"):
            narrow = log_weights.astype(np.float16)
        token = begin = 0
        for index, length, advantage, has_weights in rows:
            end = begin + int(length) if has_weights else begin
            clipped = np.flatnonzero(is_clipped[token : token + int(length)]).astype(np.int32)
            trained[int(index)] = TrainedTrajectory(
                log_weights=narrow[begin:end], advantage=float(advantage), clipped=clipped
            )
            token, begin = token + int(length), end
        return tuple(trained)
