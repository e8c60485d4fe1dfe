"""Groups and buffers for tests, small and complete: what the wire and the checkpoint carry, they carry."""

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.groups import BufferState
from freerun.config.recipe import StalenessPolicy
from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory, decoder_for, encode

POLICIES: tuple[StalenessPolicy, ...] = ("wait", "drop", "requeue")


def a_group(
    ordinal: int, start_version: int, oldest_version: int | None = None, rewards: Sequence[float] = (1.0, 0.0)
) -> Group:
    oldest = start_version if oldest_version is None else oldest_version
    prompt = Prompt(
        ordinal=ordinal, key=f"test:{ordinal}", text="?", answer="!", token_ids=np.array([1], np.int32)
    )
    completion = Completion(
        token_ids=np.array([2, 3], np.int32),
        logprobs=np.array([-1.0, -2.0], np.float32),
        spans=(Span(oldest, 1), Span(oldest + 1, 1)),
        finish_reason="stop",
        text="..",
    )
    return Group(
        ordinal=ordinal,
        start_version=start_version,
        trajectories=tuple(
            Trajectory(prompt=prompt, sample=i, completion=completion, reward=Reward(value, value > 0))
            for i, value in enumerate(rewards)
        ),
    )


def a_group_of_sessions(ordinal: int, start_version: int, rewards: Sequence[float] = (1.0, 0.0)) -> Group:
    """Sessions of two calls with given tokens between them, and of a third call in another sequence."""
    group = a_group(ordinal, start_version, rewards=rewards)
    first = Completion(
        token_ids=np.array([2, 9, 9, 3], np.int32),
        logprobs=np.array([-1.0, 0.0, 0.0, -2.0], np.float32),
        spans=(Span(start_version + 1, 1), Span(None, 2), Span(start_version + 2, 1, call=1)),
        finish_reason="stop",
        text="..",
    )
    last = structs.replace(
        first, token_ids=first.token_ids[:1], logprobs=first.logprobs[:1], spans=(Span(start_version, 1, call=2),)
    )
    parts = [
        structs.replace(trajectory, part=part, completion=completion)
        for trajectory in group.trajectories
        for part, completion in enumerate((first, last))
    ]
    return structs.replace(group, trajectories=tuple(parts))


def a_buffer(
    *, groups: int = 1, max_staleness: int = 0, policy: StalenessPolicy = "wait", filtering: bool = False
) -> TrajectoryBuffer:
    return TrajectoryBuffer(
        groups_per_batch=groups, max_staleness=max_staleness, policy=policy, filter_zero_variance=filtering
    )


def through_a_checkpoint(buffer: TrajectoryBuffer) -> BufferState:
    """What a checkpoint gives back: saved, written and read again."""
    return decoder_for(BufferState).decode(encode(buffer.snapshot()))
