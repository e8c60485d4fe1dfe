"""Batches and their results in parts: the paper's batch of 512 x 16 long trajectories exceeds one frame."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from freerun.types import Group, TrainedTrajectory, Trajectory

T = TypeVar("T")
PART_BYTES = 64 << 20
"""Far below the frame limit, since sizes are estimated; far above a small batch, which stays whole."""
SPAN_BYTES = 48
TURN_BYTES = 9
TRAJECTORY_BYTES = 512


def split_batch(groups: Sequence[Group], *, part_bytes: int = PART_BYTES) -> list[tuple[Group, ...]]:
    """The groups in order, in parts of about `part_bytes` or one group each; one part if there is no group."""
    return _split(groups, lambda group: sum(_size(trajectory) for trajectory in group.trajectories), part_bytes)


def split_trained(
    trained: Sequence[TrainedTrajectory], *, part_bytes: int = PART_BYTES
) -> list[tuple[TrainedTrajectory, ...]]:
    """The trajectories in order, in parts of about `part_bytes`."""
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
    """An estimate of its bytes in a frame, two for each character of text."""
    prompt, completion = trajectory.prompt, trajectory.completion
    arrays = prompt.token_ids.nbytes + completion.token_ids.nbytes + completion.logprobs.nbytes
    text = len(prompt.text) + len(prompt.answer) + len(completion.text)
    spans, turns = SPAN_BYTES * len(completion.spans), TURN_BYTES * len(trajectory.reward.turns)
    return arrays + 2 * text + spans + turns + TRAJECTORY_BYTES
