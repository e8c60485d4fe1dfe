"""What a step says about each trajectory of its batch, about its phases, and about the batch as a whole."""

from dataclasses import replace as changed
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from objective_trainers import some_reference
from sessions import as_few_sequences_as_possible, make_sessions
from training_batches import (
    VERSION,
    config,
    make_groups,
    make_trainer,
    reference_logprobs,
    replace,
    tiny_decoder,
    trajectories_of,
)

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.trainer.axes import compute_advantages
from freerun.types import Group, Reward, StepResult


def step(groups: list[Group], objective: ObjectiveConfig, **changes: Any) -> StepResult:
    trainer = make_trainer(tiny_decoder(), config(**changes), objective)
    trainer.reference = some_reference()
    return trainer.step(groups)


@pytest.mark.parametrize("num_minibatches", [1, 3])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_objective_tells_weights_advantage_and_clips_of_each_trajectory(
    name: str, num_minibatches: int
) -> None:
    groups, objective = make_groups(), PRESETS[name]
    result = step(groups, objective, num_minibatches=num_minibatches, micro_batch_tokens=30)
    trajectories = trajectories_of(groups)
    assert len(result.trajectories) == len(trajectories)
    num_known = 0
    with torch.no_grad():
        model = tiny_decoder()
        for trajectory, trained in zip(trajectories, result.trajectories, strict=True):
            assert trained.log_weights.dtype == np.float16
            if not trained.log_weights.size:
                continue
            num_known += 1
            proximal = np.array(reference_logprobs(model, trajectory))
            expected = proximal - trajectory.completion.logprobs
            np.testing.assert_allclose(trained.log_weights, expected, rtol=2e-3, atol=2e-3)
    assert num_known == len(trajectories) or (not objective.uses_proximal and num_minibatches == 3)
    assert num_known > 0
    num_clipped = sum(trained.num_clipped for trained in result.trajectories)
    num_tokens = sum(trajectory.completion.num_sampled for trajectory in trajectories)
    assert num_clipped == pytest.approx(result.metrics["clip_fraction"] * num_tokens)
    if not objective.has_critic:
        expected_advantages = compute_advantages(groups, objective)
        np.testing.assert_allclose([t.advantage for t in result.trajectories], expected_advantages, rtol=1e-5)
    else:
        lengths = [trajectory.completion.num_sampled for trajectory in trajectories]
        advantages = [trained.advantage for trained in result.trajectories]
        assert np.average(advantages, weights=lengths) == pytest.approx(0, abs=1e-5)  # normalised over the step
        assert np.std(advantages) > 0


def test_the_clipped_tokens_are_those_that_the_trust_region_holds_back() -> None:
    groups, objective = make_groups(), changed(PRESETS["grpo"], correction="none")
    result = step(groups, objective, micro_batch_tokens=30)
    num_clipped = 0
    with torch.no_grad():
        for trajectory, trained in zip(trajectories_of(groups), result.trajectories, strict=True):
            ratios = np.exp(
                np.array(reference_logprobs(tiny_decoder(), trajectory)) - trajectory.completion.logprobs
            )
            is_over = (
                ratios > 1 + objective.clip_high if trained.advantage > 0 else ratios < 1 - objective.clip_low
            )
            assert trained.clipped.tolist() == np.flatnonzero(is_over).tolist()
            num_clipped += trained.num_clipped
    assert num_clipped > 0


def test_trajectories_are_told_in_the_order_of_the_batch_even_if_parts_are_apart() -> None:
    groups = as_few_sequences_as_possible(make_sessions(branches=True))
    turned = [msgspec.structs.replace(g, trajectories=g.trajectories[::-1]) for g in groups]
    ours, theirs = (step(batch, PRESETS["grpo"], num_minibatches=2) for batch in (groups, turned))
    places = {
        (t.prompt.ordinal, t.sample, t.part): trained
        for t, trained in zip(trajectories_of(turned), theirs.trajectories, strict=True)
    }
    for trajectory, trained in zip(trajectories_of(groups), ours.trajectories, strict=True):
        other = places[trajectory.prompt.ordinal, trajectory.sample, trajectory.part]
        assert trained.log_weights.size in (0, trajectory.completion.num_sampled)
        np.testing.assert_allclose(trained.log_weights, other.log_weights, rtol=2e-3, atol=2e-3)
        assert trained.advantage == pytest.approx(other.advantage, rel=1e-5, abs=1e-6)


def test_what_was_not_computed_has_no_weights_and_no_clipped_tokens() -> None:
    flat = replace(make_groups(seed=1, num_groups=2), reward=lambda _: Reward(0.1, False))
    result = step([*make_groups(), *flat], PRESETS["grpo"])
    for trained in result.trajectories[-8:]:
        assert (trained.log_weights.size, trained.advantage, trained.num_clipped) == (0, 0.0, 0)
    assert all(trained.log_weights.size for trained in result.trajectories[:16])


def test_a_step_tells_what_it_did_since_the_step_before_in_order() -> None:
    objective = changed(PRESETS["grpo"], kl_coefficient=0.3)
    trainer = make_trainer(tiny_decoder(), config(num_minibatches=2), objective)
    trainer.reference = some_reference()
    with trainer.phases.phase("publishing"):
        pass
    first = trainer.step(make_groups())
    assert [name for name, _ in first.phases] == [
        "publishing",
        "rating",
        "reference",
        "proximal",
        "training",
        "updating",
    ]
    assert all(seconds >= 0 for _, seconds in first.phases)
    second = trainer.step(replace(make_groups(), reward=lambda _: Reward(1.0, True)))
    assert "publishing" not in dict(second.phases)


def test_a_batch_says_whether_there_is_something_to_learn_from() -> None:
    def reward_of(value: float) -> Any:
        return lambda _: Reward(value, value > 0)

    texts = iter(["a", "a", "b", " "] * 4)
    mixed = replace(make_groups(num_groups=1), reward=lambda t: Reward(float(t.sample), t.sample > 0))
    right = replace(make_groups(seed=1, num_groups=2), reward=reward_of(5.0))
    wrong = replace(make_groups(seed=2, num_groups=1), reward=reward_of(-5.0))
    groups = replace([*mixed, *right, *wrong], completion=lambda t: {"text": next(texts)})
    groups = replace(groups, completion=lambda t: {"finish_reason": "length"} if t.sample == 3 else {})
    metrics = step(groups, PRESETS["grpo"]).metrics
    assert metrics["equal_group_share"] == 3 / 4
    assert metrics["all_right_share"] == 2 / 4
    assert metrics["all_wrong_share"] == 1 / 4
    assert (metrics["common_reward"], metrics["common_reward_share"]) == (5.0, 8 / 16)
    assert metrics["reward_std"] == pytest.approx(np.std([0, 1, 2, 3] + [5] * 8 + [-5] * 4))
    assert metrics["distinct_text_share"] == 3 / 4
    assert metrics["empty_share"] == metrics["cut_off_share"] == 1 / 4
    assert metrics["num_updates"] == 1


def test_groups_are_only_called_equal_where_the_objective_compares_within_them() -> None:
    metrics = step(make_groups(), PRESETS["ppo"]).metrics
    assert "equal_group_share" not in metrics
    single = step(make_groups(num_groups=8, group_size=1), PRESETS["ppo"]).metrics
    assert "distinct_text_share" not in single


def test_a_step_without_anything_to_learn_from_makes_no_update() -> None:
    flat = replace(make_groups(), reward=lambda _: Reward(1.0, True))
    result = step(flat, PRESETS["grpo"])
    assert result.metrics["num_updates"] == 0
    assert result.version == VERSION + 1
    assert len(result.trajectories) == 16
