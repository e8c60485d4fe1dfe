"""Checks that a workflow returned one whole group: every sample, every part, and one reward per sample.

A workflow may be user code, so an invalid result fails its group and is counted; it does not end the run.
"""

from freerun.errors import RolloutError
from freerun.types import Group, WholeSample


def check_group(group: Group, *, group_size: int) -> None:
    """Raise unless the group has the samples 0 to group_size - 1, each with the parts 0, 1, ... of one session."""
    found = {trajectory.sample for trajectory in group.trajectories}
    if found != set(range(group_size)):
        raise RolloutError(
            f"the workflow returned samples {sorted(found)} for a group of {group_size}; "
            f"return at least one trajectory for each sample from 0 to {group_size - 1}"
        )
    for sample in group.samples:
        _check_parts(sample)


def _check_parts(sample: WholeSample) -> None:
    if len(sample.parts) == 1 and sample.parts[0].part == 0:
        return  # a single completion, the usual case
    index, parts = sample.parts[0].sample, [trajectory.part for trajectory in sample.parts]
    if parts != list(range(len(parts))):
        raise RolloutError(
            f"the workflow returned parts {parts} of sample {index}; "
            "number the sequences of a session from 0, and the samples of a group differently"
        )
    if any(trajectory.reward != sample.reward for trajectory in sample.parts):
        raise RolloutError(
            f"the workflow returned different rewards for the parts of sample {index}; "
            "give each of them the reward of the whole session"
        )
