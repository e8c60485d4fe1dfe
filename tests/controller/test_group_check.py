"""A workflow must return every sample of its group, each as the numbered sequences of one session."""

from collections.abc import Sequence

import pytest
from fake_groups import a_group, a_group_of_sessions
from msgspec import structs

from freerun.controller.group_check import check_group
from freerun.errors import RolloutError
from freerun.types import Group, Reward, Trajectory


def only(group: Group, trajectories: Sequence[Trajectory]) -> Group:
    return structs.replace(group, trajectories=tuple(trajectories))


def test_a_group_of_completions_or_of_sessions_is_whole() -> None:
    check_group(a_group(0, 0), group_size=2)
    check_group(a_group_of_sessions(0, 0), group_size=2)


def test_sequences_do_not_stand_in_for_samples() -> None:
    first, *_ = (sample.parts for sample in a_group_of_sessions(0, 0).samples)
    with pytest.raises(RolloutError, match=r"returned samples \[0\] for a group of 2"):
        check_group(only(a_group(0, 0), first), group_size=2)


def test_a_sample_too_many_is_refused() -> None:
    with pytest.raises(RolloutError, match=r"samples \[0, 1, 2\] for a group of 2; .* sample from 0 to 1"):
        check_group(a_group(0, 0, rewards=(1.0, 0.0, 1.0)), group_size=2)


def test_a_missing_or_repeated_part_is_refused() -> None:
    group = a_group_of_sessions(0, 0)
    for trajectories, parts in (
        (group.trajectories[1:], r"\[1\] of sample 0"),
        ((*group.trajectories, group.trajectories[-1]), r"\[0, 1, 1\] of sample 1"),
    ):
        with pytest.raises(RolloutError, match=f"returned parts {parts}; number the sequences"):
            check_group(only(group, trajectories), group_size=2)


def test_the_parts_of_a_session_have_one_reward() -> None:
    group = a_group_of_sessions(0, 0)
    *others, last = group.trajectories
    with pytest.raises(RolloutError, match="different rewards for the parts of sample 1"):
        check_group(only(group, [*others, structs.replace(last, reward=Reward(9.0, True))]), group_size=2)
