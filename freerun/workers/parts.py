"""Splits batches and results for sending: the paper's batch of 512 x 16 long trajectories exceeds one frame."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from freerun.types import Group, TrainedTrajectory, Trajectory

T = TypeVar("T")
PART_BYTES = 64 << 20
"""Far below the frame limit, since sizes are estimates, and far above small batches, which stay whole."""
SPAN_BYTES = 48
TURN_BYTES = 9
TRAJECTORY_BYTES = 512


def split_batch(groups: Sequence[Group], *, part_bytes: int = PART_BYTES) -> list[tuple[Group, ...]]:
    """Split the groups, in order, into parts of about `part_bytes`, at least one group each; `[()]` if empty."""
    return _split(groups, lambda group: sum(_size(trajectory) for trajectory in group.trajectories), part_bytes)


def split_trained(
    trained: Sequence[TrainedTrajectory], *, part_bytes: int = PART_BYTES
) -> list[tuple[TrainedTrajectory, ...]]:
    """Split the trajectories, in order, into parts of about `part_bytes`."""
    return _split(
        trained,
        lambda trajectory: trajectory.log_weights.nbytes + trajectory.clipped.nbytes + SPAN_BYTES,
        part_bytes,
    )


def _split(items: Sequence[T], size_of: Callable[[T], int], part_bytes: int) -> list[tuple[T, ...]]:
    parts: list[list[T]] = [[]]
    num_bytes = 0
    for item in items:
        size = size_of(item)
        if parts[-1] and num_bytes + size > part_bytes:
            parts.append([])
            num_bytes = 0
        parts[-1].append(item)
        num_bytes += size
    return [tuple(part) for part in parts]


def _size(trajectory: Trajectory) -> int:
    """Estimated size in a frame in bytes, counting two bytes per character of text."""
    prompt, completion = trajectory.prompt, trajectory.completion
    arrays = prompt.token_ids.nbytes + completion.token_ids.nbytes + completion.logprobs.nbytes
    text = len(prompt.text) + len(prompt.answer) + len(completion.text)
    spans, turns = SPAN_BYTES * len(completion.spans), TURN_BYTES * len(trajectory.reward.turns)
    return arrays + 2 * text + spans + turns + TRAJECTORY_BYTES
