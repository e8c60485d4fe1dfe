"""A batch in parts that fit into frames.

The paper's batch of 512 x 16 long trajectories is larger than one frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from freerun.types import Group, Trajectory

PART_BYTES = 64 << 20
"""Far below the limit of a frame, since sizes are estimated; and far above a small batch, which stays whole."""
SPAN_BYTES = 32
TRAJECTORY_BYTES = 512


def split_batch(groups: Sequence[Group], *, part_bytes: int = PART_BYTES) -> list[tuple[Group, ...]]:
    """The groups in order, in parts of about `part_bytes` or one group; one part if there is none."""
    parts: list[list[Group]] = [[]]
    num_bytes = 0
    for group in groups:
        size = sum(_size(trajectory) for trajectory in group.trajectories)
        if parts[-1] and num_bytes + size > part_bytes:
            parts.append([])
            num_bytes = 0
        parts[-1].append(group)
        num_bytes += size
    return [tuple(part) for part in parts]


def _size(trajectory: Trajectory) -> int:
    """About what it takes in a frame; a character of text is taken for two bytes."""
    prompt, completion = trajectory.prompt, trajectory.completion
    arrays = prompt.token_ids.nbytes + completion.token_ids.nbytes + completion.logprobs.nbytes
    text = len(prompt.text) + len(prompt.answer) + len(completion.text)
    return arrays + 2 * text + SPAN_BYTES * len(completion.spans) + TRAJECTORY_BYTES
