"""Advantages: centred and scaled over the batch or the group, exactly zero where nothing can be compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.config.objective import ObjectiveConfig
from freerun.trainer import axes
from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory


def make_completion(num_tokens: int) -> Completion:
    return Completion(
        token_ids=np.full(num_tokens, 2, np.int32),
        logprobs=np.full(num_tokens, -1.0, np.float32),
        spans=(Span(0, num_tokens),),
        finish_reason="stop",
        text="",
    )


def make_group(*rewards: float, lengths: Sequence[int] = ()) -> Group:
    prompt = Prompt(ordinal=0, key="", text="", answer="", token_ids=np.array([1], np.int32))
    trajectories = tuple(
        Trajectory(
            prompt=prompt, sample=i, completion=make_completion(n), reward=Reward(value=r, is_correct=r > 0)
        )
        for i, (r, n) in enumerate(zip(rewards, lengths or [1] * len(rewards), strict=True))
    )
    return Group(ordinal=0, start_version=0, trajectories=trajectories)


def compute_advantages(groups: Sequence[Group], estimator: str, *, per_token: bool = False) -> np.ndarray:
    objective = ObjectiveConfig(advantage=estimator)
    if not per_token:
        return axes.compute_advantages(groups, objective)
    rewards = [np.array([t.reward.value for t in group.trajectories]) for group in groups]
    lengths = [np.array([len(t.completion.token_ids) for t in group.trajectories]) for group in groups]
    estimate = axes.axis_function(objective, "advantage")
    return np.concatenate(estimate(rewards, lengths, ObjectiveConfig(advantage_normalisation="token")))


def test_group_advantages_compare_within_each_group() -> None:
    advantages = compute_advantages([make_group(5, -5), make_group(3, 1, 1, 3)], "grpo")
    assert advantages == pytest.approx([1, -1, 1, -1, -1, 1], rel=1e-5)


def test_global_advantages_compare_over_the_whole_batch() -> None:
    # Mean 1, standard deviation 4: the group of equal rewards has an advantage here.
    advantages = compute_advantages([make_group(5, 5), make_group(5, -3, -3, -3)], "global")
    assert advantages == pytest.approx([1, 1, 1, -1, -1, -1], rel=1e-5)


def test_global_advantages_have_mean_zero_and_deviation_one() -> None:
    advantages = compute_advantages([make_group(0.3, 7, 2), make_group(-4, 11)], "global")
    assert advantages.mean() == pytest.approx(0, abs=1e-12)
    assert advantages.std() == pytest.approx(1, rel=1e-5)


@given(st.floats(-1e6, 1e6), st.integers(1, 9))
def test_a_group_of_equal_rewards_has_advantages_of_exactly_zero(reward: float, size: int) -> None:
    advantages = compute_advantages([make_group(*[reward] * size), make_group(1, 2)], "grpo")
    assert (advantages[:size] == 0).all()
    assert (advantages[size:] != 0).all()


@given(st.floats(-1e6, 1e6), st.integers(1, 9))
def test_a_batch_of_equal_rewards_has_advantages_of_exactly_zero(reward: float, size: int) -> None:
    assert (compute_advantages([make_group(*[reward] * size)] * 2, "global") == 0).all()


GROUPS = [make_group(3, 1, 1, 3), make_group(5, -5, 2, 0), make_group(1, 1, 1, 1)]
ESTIMATORS = ["global", "grpo", "dr_grpo", "rloo", "reinforce++"]


def test_dr_grpo_subtracts_the_mean_of_the_group_and_scales_nothing() -> None:
    expected = [1, -1, -1, 1, 4.5, -5.5, 1.5, -0.5, 0, 0, 0, 0]
    assert compute_advantages(GROUPS, "dr_grpo") == pytest.approx(expected)


def test_rloo_compares_each_reward_with_the_mean_of_the_others() -> None:
    expected = [
        t.reward.value - np.mean([other.reward.value for other in group.trajectories if other is not t])
        for group in GROUPS
        for t in group.trajectories
    ]
    assert compute_advantages(GROUPS, "rloo") == pytest.approx(expected)
    assert compute_advantages(GROUPS, "rloo") == pytest.approx(compute_advantages(GROUPS, "dr_grpo") * 4 / 3)


def test_reinforce_plus_plus_is_dr_grpo_scaled_to_deviation_one_over_the_batch() -> None:
    advantages, centred = compute_advantages(GROUPS, "reinforce++"), compute_advantages(GROUPS, "dr_grpo")
    assert advantages == pytest.approx(centred / centred.std(), rel=1e-5)
    assert advantages.std() == pytest.approx(1, rel=1e-5)


@given(st.floats(-1e6, 1e6), st.integers(2, 9))
@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce++"])
def test_equal_rewards_in_a_group_have_advantages_of_exactly_zero_beside_others(
    estimator: Any, reward: float, size: int
) -> None:
    advantages = compute_advantages([make_group(*[reward] * size), make_group(1, 2)], estimator)
    assert (advantages[:size] == 0).all()
    assert (advantages[size:] != 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_advantages_of_a_batch_sum_to_zero(estimator: Any) -> None:
    assert compute_advantages(GROUPS, estimator).sum() == pytest.approx(0, abs=1e-9)


LONG_AND_SHORT = [make_group(5, -5, lengths=[3, 1]), make_group(5, 5, 5, -5, lengths=[1, 2, 3, 10])]


def test_per_token_every_token_counts_once_in_mean_and_deviation() -> None:
    # Of 20 tokens 9 have +5 and 11 have -5: mean -0.5, variance 24.75.
    advantages = compute_advantages(LONG_AND_SHORT, "global", per_token=True)
    assert advantages[0] == pytest.approx(5.5 / 24.75**0.5, rel=1e-5)
    assert advantages[1] == pytest.approx(-4.5 / 24.75**0.5, rel=1e-5)
    assert not np.allclose(advantages, compute_advantages(LONG_AND_SHORT, "global"))


def tokens_of(groups: list[Group], advantages: np.ndarray) -> np.ndarray:
    return np.repeat(advantages, [len(t.completion.token_ids) for g in groups for t in g.trajectories])


def test_per_token_the_tokens_have_mean_zero_and_deviation_one() -> None:
    tokens = tokens_of(LONG_AND_SHORT, compute_advantages(LONG_AND_SHORT, "global", per_token=True))
    assert (tokens.mean(), tokens.std()) == pytest.approx((0, 1), abs=1e-6)
    for group in LONG_AND_SHORT:
        tokens = tokens_of([group], compute_advantages([group], "grpo", per_token=True))
        assert (tokens.mean(), tokens.std()) == pytest.approx((0, 1), abs=1e-6)
    tokens = tokens_of(LONG_AND_SHORT, compute_advantages(LONG_AND_SHORT, "reinforce++", per_token=True))
    assert tokens.std() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_completions_of_equal_length_are_normalised_alike_per_token_and_per_trajectory(
    estimator: Any,
) -> None:
    alike = [compute_advantages(GROUPS, estimator, per_token=per_token) for per_token in (False, True)]
    assert (alike[0] == alike[1]).all()


@pytest.mark.parametrize("estimator", ["global", "grpo", "reinforce++"])
def test_equal_rewards_are_exactly_zero_per_token_too(estimator: Any) -> None:
    group = make_group(0.3, 0.3, 0.3, lengths=[1, 7, 30])
    assert (compute_advantages([group, group], estimator, per_token=True) == 0).all()
