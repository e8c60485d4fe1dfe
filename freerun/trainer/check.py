"""Refuses trajectories that cannot be trained on, before anything has changed.

These errors are bugs of an engine or a workflow, not bad data: they must not turn into wrong gradients.
"""

import numpy as np

from freerun.types import Completion, Trajectory


def check_trajectory(trajectory: Trajectory, *, version: int) -> None:
    """Raise if the trajectory cannot be trained on at `version`."""
    completion, name = trajectory.completion, _name_of(trajectory)
    num_tokens = len(completion.token_ids)
    if num_tokens == 0 or len(trajectory.prompt.token_ids) == 0:
        raise ValueError(f"{name} has an empty prompt or completion; there is nothing to predict")
    num_in_spans = sum(span.num_tokens for span in completion.spans)
    if not num_tokens == len(completion.logprobs) == num_in_spans:
        raise ValueError(
            f"{name} has {num_tokens} tokens, {len(completion.logprobs)} behaviour logprobs and spans over "
            f"{num_in_spans} tokens; they must be as many"
        )
    _check_given(completion, name)
    newest = int(completion.versions.max())
    if newest > version:
        raise ValueError(
            f"{name} has tokens of version {newest}, but the trainer is at version {version}; "
            "the trainer was restored to an older version than the generators"
        )


def _name_of(trajectory: Trajectory) -> str:
    """`trajectory 17/3`, or for a session in several sequences `trajectory 17/3 part 1`."""
    part = f" part {trajectory.part}" if trajectory.part else ""
    return f"trajectory {trajectory.prompt.ordinal}/{trajectory.sample}{part}"


def _check_given(completion: Completion, name: str) -> None:
    """Check that given tokens lie between sampled ones and have no logprobs, and that calls are in order."""
    is_sampled = completion.is_sampled
    if not (is_sampled[0] and is_sampled[-1]):
        raise ValueError(
            f"{name} begins or ends with a given token; put what precedes its first sampled token into the prompt "
            "and leave out what follows the last one"
        )
    if completion.logprobs[~is_sampled].any():
        raise ValueError(f"{name} has behaviour logprobs of given tokens; they must be 0")
    if (np.diff(completion.calls) < 0).any():
        raise ValueError(f"{name} has tokens of an earlier call after those of a later one; order them by call")
