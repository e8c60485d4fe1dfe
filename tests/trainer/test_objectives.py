"""Every objective against its published equation (`slow_objectives.py`), through packing, minibatches, updates."""

from dataclasses import replace as changed
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from objective_trainers import as_single, assert_gradients, packed_trainer, some_critic, some_reference
from slow_advantages import naive_gae
from slow_objectives import (
    ADVANTAGE,
    PUBLISHED,
    Objective,
    SlowTrainer,
    Step,
    grpo_with_kl_and_entropy,
    sequence_masked,
    slow_m2_mask,
    truncated_dual,
)
from torch import Tensor
from training_batches import (
    TEMPERATURE,
    assert_close,
    config,
    first_gradients,
    make_groups,
    make_trainer,
    replace,
    same_bits,
    tiny_decoder,
    trajectories_of,
    weights_of,
)

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.errors import CheckpointError
from freerun.model.decoder import Decoder
from freerun.trainer.batch import pack_sequences
from freerun.trainer.correction import drifts, keep_small_drifts
from freerun.trainer.critic import generalised_advantages
from freerun.trainer.logprobs import completion_logprobs
from freerun.trainer.timeline import Timeline
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Group, Reward, StepResult

MIXES: dict[str, tuple[ObjectiveConfig, Objective]] = {
    "truncated, dual": (
        ObjectiveConfig(advantage="grpo", clip="dual", dual_clip=1.5, correction="truncated"),
        truncated_dual,
    ),
    "kl, entropy": (
        changed(PRESETS["grpo"], kl_coefficient=0.3, entropy_coefficient=0.2),
        grpo_with_kl_and_entropy,
    ),
    "sequence, masked": (
        ObjectiveConfig(
            advantage="grpo",
            ratio="sequence",
            clip_low=0.05,
            clip_high=0.05,
            correction="masked",
            weight_low=0.8,
            weight_high=1.2,
            aggregation="sequence",
        ),
        sequence_masked,
    ),
    "global per token": (ObjectiveConfig(advantage_normalisation="token"), PUBLISHED["areal"]),
    "grpo per token": (changed(PRESETS["grpo"], advantage_normalisation="token"), PUBLISHED["grpo"]),
    "reinforce++ per token": (
        changed(PRESETS["reinforce++"], advantage_normalisation="token"),
        PUBLISHED["reinforce++"],
    ),
}
EVERYTHING = [*PUBLISHED, *MIXES]


def objective_of(name: Any) -> tuple[ObjectiveConfig, Objective, str]:
    """The configuration, the slow formula and the name of its advantage."""
    if name in MIXES:
        return *MIXES[name], name if name.endswith(" per token") else "grpo"
    return PRESETS[name], PUBLISHED[name], ADVANTAGE[name]


def logprobs_under(model: Decoder, groups: list[Group]) -> dict[int, np.ndarray]:
    """What the model says about each completion, by the identity of its tokens."""
    with torch.no_grad():
        return {
            id(t.completion.token_ids): completion_logprobs(
                model, pack_sequences([(t.prompt.token_ids, t.completion.token_ids)]), temperature=TEMPERATURE
            ).numpy()
            for t in trajectories_of(groups)
        }


def stale_groups(seed: int = 0) -> list[Group]:
    """Behaviour close to the policy but for some tokens far away, and one group whose rewards are all equal."""
    rng = np.random.default_rng(seed + 100)
    groups = make_groups(seed, num_groups=5)
    known = logprobs_under(tiny_decoder(), groups)

    def behaviour(t: Any) -> dict[str, Any]:
        logprobs = known[id(t.completion.token_ids)]
        noise = rng.normal(0, 0.15, len(logprobs)) + rng.choice([0.0, 2.0, -2.0], len(logprobs), p=[0.8, 0.1, 0.1])
        return {"logprobs": (logprobs + noise).astype(np.float32)}

    rewards = replace(groups, reward=lambda t: Reward(1.0, True) if t.prompt.ordinal == 2 else t.reward)
    return replace(rewards, completion=behaviour)


def fresh_groups() -> list[Group]:
    """Behaviour that is the policy."""
    groups = make_groups()
    known = logprobs_under(tiny_decoder(), groups)
    return replace(groups, completion=lambda t: {"logprobs": known[id(t.completion.token_ids)]})


def both_steps(
    name: str, train: TrainConfig, groups: list[Group]
) -> tuple[PolicyTrainer, StepResult, SlowTrainer, float, list[dict[str, Tensor]]]:
    """The same step by the trainer and by the slow formula."""
    objective, formula, advantage = objective_of(name)
    trainer = packed_trainer(tiny_decoder(), train, objective)
    result = trainer.step(groups)
    slow = SlowTrainer(
        tiny_decoder(),
        train,
        critic=some_critic() if advantage == "gae" else None,
        reference=some_reference() if name == "kl, entropy" else None,
    )
    step: Step = slow.start(groups, advantage)
    if name == "m2po":
        slow_m2_mask(step, 0.04)
    loss, gradients = slow.run(step, formula, skips_zero=name not in ("ppo", "kl, entropy"))
    return trainer, result, slow, loss, gradients


def test_every_preset_has_a_formula() -> None:
    assert PUBLISHED.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", EVERYTHING)
def test_loss_and_gradient_are_those_of_the_published_equation(name: str) -> None:
    trainer, result, _, loss, gradients = both_steps(name, config(num_minibatches=1), stale_groups())
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-6, rel=1e-5)
    assert_gradients(first_gradients(trainer), gradients[0])
    squares = [g.square().sum() for name, g in gradients[0].items() if not name.startswith("critic.")]
    norm = float(torch.stack(squares).sum().sqrt())
    assert norm > 1e-3
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_updates_of_several_minibatches_are_those_of_the_published_equation(name: str) -> None:
    train = config(num_minibatches=3)
    trainer, result, slow, loss, _ = both_steps(name, train, stale_groups())
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-5, rel=1e-4)
    assert_close(weights_of(trainer.model), as_single(weights_of(slow.model)), tolerance=2e-5)
    if slow.critic is not None:
        state = {name: t for name, t in trainer.optimizer_state().items() if name.startswith("critic.")}
        expected = {f"critic.{name}": p.detach() for name, p in slow.critic.named_parameters()}
        assert_close(state, as_single(expected), tolerance=2e-5)


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_batches_of_these_tests_reach_every_limit(name: str) -> None:
    """A clip or a mask that never acts would be tested by nothing."""
    objective, _, _ = objective_of(name)
    metrics = packed_trainer(tiny_decoder(), config(num_minibatches=3), objective).step(stale_groups()).metrics
    if objective.clip in ("ppo", "dual", "cispo"):
        assert 0.02 < metrics["clip_fraction"] < 0.98
    else:
        assert metrics["clip_fraction"] == 0
    if objective.correction in ("masked", "m2po"):
        assert 0.05 < metrics["masked_fraction"] < 0.95
    else:
        assert "masked_fraction" not in metrics
    assert metrics["behaviour_weight_max"] > 5
    if objective.kl_coefficient > 0:
        assert metrics["reference_kl"] > 0.01


def test_the_floor_of_the_dual_clip_is_reached() -> None:
    dual, _ = MIXES["truncated, dual"]
    losses = [
        make_trainer(tiny_decoder(), config(num_minibatches=3), objective).step(stale_groups()).metrics["loss"]
        for objective in (dual, changed(dual, clip="ppo"))
    ]
    assert losses[0] < losses[1] - 1e-4


@pytest.mark.parametrize("name", EVERYTHING)
def test_packing_changes_no_objective(name: str) -> None:
    objective, _, _ = objective_of(name)
    trainers = [
        packed_trainer(tiny_decoder(), config(num_minibatches=1, micro_batch_tokens=tokens), objective)
        for tokens in (1, 30, 10_000)
    ]
    results = [trainer.step(stale_groups()) for trainer in trainers]
    for one, other in pairwise(results):
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=1e-6, rel=1e-5)
    for first, second in pairwise(trainers):
        assert_gradients(first_gradients(first), first_gradients(second))


@pytest.mark.parametrize("name", [*sorted(set(PUBLISHED) - {"ppo"}), "truncated, dual", "sequence, masked"])
def test_on_policy_every_objective_is_the_plain_policy_gradient_with_its_own_weights(name: str) -> None:
    objective, _, advantage = objective_of(name)
    groups = fresh_groups()
    trainer = packed_trainer(tiny_decoder(), config(), objective)
    trainer.step(groups)

    def reinforce(step: Step, part: Step) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for s in part:
            divisor = {
                "token": sum(len(other) for other in step),
                "sequence": len(step) * len(s),
                "fixed": len(step) * 12,
            }[objective.aggregation]
            total = total + s.advantages[0] * sum(s.current) / divisor
        return total

    slow = SlowTrainer(tiny_decoder(), config())
    _, gradients = slow.run(slow.start(groups, advantage), reinforce, skips_zero=True)
    assert_gradients(first_gradients(trainer), gradients[0])


@pytest.mark.parametrize("extra", [{"kl_coefficient": 0.1}, {"entropy_coefficient": 0.1}, {"advantage": "gae"}])
def test_with_a_kl_term_a_bonus_or_a_critic_a_batch_of_equal_rewards_still_trains(extra: dict[str, Any]) -> None:
    groups = replace(stale_groups(), reward=lambda _: Reward(2.0, True))
    model = tiny_decoder()
    result = packed_trainer(model, config(), ObjectiveConfig(**extra)).step(groups)
    assert result.metrics["grad_norm"] > 0
    assert not same_bits(weights_of(model), weights_of(tiny_decoder()))


def test_the_kl_term_of_a_policy_that_is_its_reference_is_zero() -> None:
    trainer = make_trainer(tiny_decoder(), objective=ObjectiveConfig(kl_coefficient=1.0))
    trainer.reference = tiny_decoder()
    groups = replace(stale_groups(), reward=lambda _: Reward(2.0, True))
    metrics = trainer.step(groups).metrics
    assert metrics["reference_kl"] == 0
    assert metrics["grad_norm"] == 0


def test_a_kl_term_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no reference policy"):
        make_trainer(tiny_decoder(), objective=ObjectiveConfig(kl_coefficient=0.1)).step(make_groups())


def one_completion(num_tokens: int, reward: float) -> Timeline:
    rewards, discounts = np.zeros(num_tokens), np.ones(num_tokens)
    rewards[-1], discounts[-1] = reward, 0.0
    return Timeline(rewards, discounts)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.7), (1.0, 0.0), (0.95, 1.0)])
def test_gae_is_the_double_sum_of_its_definition(gamma: float, lam: float) -> None:
    values = np.random.default_rng(0).normal(size=7)
    expected = naive_gae(values.tolist(), 2.5, gamma, lam)
    assert generalised_advantages(values, one_completion(7, 2.5), gamma=gamma, lam=lam) == pytest.approx(expected)


def test_gae_with_gamma_and_lambda_one_is_the_reward_minus_the_value() -> None:
    values = np.array([0.5, -1.0, 2.0])
    advantages = generalised_advantages(values, one_completion(3, 3.0), gamma=1.0, lam=1.0)
    assert advantages == pytest.approx(3.0 - values)


def test_other_gammas_and_lambdas_reach_the_trainer() -> None:
    objective = changed(PRESETS["ppo"], gae_gamma=0.9, gae_lambda=0.6)
    groups = stale_groups()
    trainer = packed_trainer(tiny_decoder(), config(), objective)
    trainer.step(groups)
    slow = SlowTrainer(tiny_decoder(), config(), critic=some_critic())
    step = slow.start(groups, "gae", gamma=0.9, lam=0.6)
    _, gradients = slow.run(step, PUBLISHED["ppo"], skips_zero=False)
    assert_gradients(first_gradients(trainer), gradients[0])


def test_a_critic_learns_what_rewards_to_expect() -> None:
    groups = fresh_groups()
    # A policy that hardly moves, a head that does.
    train, objective = config(lr=1e-3, adam_eps=1e-8), changed(PRESETS["ppo"], value_lr_scale=50.0)
    trainer = make_trainer(tiny_decoder(), train, objective)
    metrics = [trainer.step(groups).metrics for _ in range(40)]
    assert metrics[0]["explained_variance"] == pytest.approx(0, abs=1e-6)
    assert metrics[-1]["value_loss"] < 0.7 * metrics[0]["value_loss"]
    assert metrics[-1]["explained_variance"] > 0.3


def test_a_trainer_with_a_critic_restored_from_its_state_continues_bit_for_bit() -> None:
    train = config(num_minibatches=2)
    steps = [stale_groups(seed) for seed in range(4)]
    model, resumed_model = tiny_decoder(), tiny_decoder(seed=1)
    trainer = make_trainer(model, train, PRESETS["ppo"])
    for groups in steps[:2]:
        trainer.step(groups)
    resumed_model.load_state_dict(model.state_dict())
    resumed = make_trainer(resumed_model, train, PRESETS["ppo"], version=trainer.version)
    resumed.load_optimizer_state(safetensors.torch.load(safetensors.torch.save(trainer.optimizer_state())))
    for groups in steps[2:]:
        first, second = trainer.step(groups), resumed.step(groups)
        assert (first.version, first.metrics["value_loss"]) == (second.version, second.metrics["value_loss"])
    assert same_bits(weights_of(model), weights_of(resumed_model))
    assert same_bits(trainer.optimizer_state(), resumed.optimizer_state())


def test_a_state_without_a_critic_is_refused_by_a_trainer_that_needs_one_and_the_reverse() -> None:
    plain, with_critic = make_trainer(tiny_decoder()), make_trainer(tiny_decoder(), objective=PRESETS["ppo"])
    with pytest.raises(CheckpointError, match="made without a critic"):
        with_critic.load_optimizer_state(plain.optimizer_state())
    with pytest.raises(CheckpointError, match=r"critic\.\w+"):
        plain.load_optimizer_state(with_critic.optimizer_state())


@pytest.mark.parametrize("seed", range(20))
def test_m2po_keeps_the_most_tokens_that_satisfy_its_bound_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    moved = torch.from_numpy(rng.normal(0, 0.3, 100))
    is_kept = keep_small_drifts(moved, threshold=0.04)
    assert is_kept[moved <= 0].all()
    is_limited = moved > 0
    moments, kept = moved[is_limited].square(), is_kept[is_limited]
    assert 0 < int(kept.sum()) < len(kept)
    assert float(moments[kept].mean()) < 0.04
    next_one = moments[~kept].min()
    assert float(next_one) >= float(moments[kept].max())
    assert float((moments[kept].sum() + next_one) / (kept.sum() + 1)) >= 0.04
    order = torch.from_numpy(rng.permutation(100))
    assert torch.equal(keep_small_drifts(moved[order], threshold=0.04), is_kept[order])


def test_m2po_keeps_all_tokens_on_policy_and_no_limited_one_when_all_are_far_away() -> None:
    assert keep_small_drifts(torch.zeros(5), threshold=0.04).all()
    assert keep_small_drifts(torch.empty(0), threshold=0.04).shape == (0,)
    assert keep_small_drifts(torch.tensor([1.0, 1.0, -1.0]), threshold=0.04).tolist() == [False, False, True]


def test_m2po_limits_only_tokens_that_moved_the_way_their_advantage_pushes() -> None:
    weights = torch.tensor([9.0, 9.0, 9.0, 1 / 9, 1 / 9, 1 / 9])
    advantages = torch.tensor([2.0, -2.0, 0.0, 2.0, -2.0, 0.0])
    is_kept = keep_small_drifts(drifts(weights.log(), advantages), threshold=0.04)
    assert is_kept.tolist() == [False, True, True, True, False, True]


def test_the_critics_gradient_does_not_shorten_the_policys_step() -> None:
    def policy_gradients(value_coefficient: float) -> dict[str, Tensor]:
        objective = changed(PRESETS["ppo"], value_coefficient=value_coefficient)
        trainer = make_trainer(tiny_decoder(), config(num_minibatches=1, max_grad_norm=0.05), objective)
        trainer.step(make_groups())
        return {name: g for name, g in first_gradients(trainer).items() if not name.startswith("critic.")}

    assert same_bits(policy_gradients(0.1), policy_gradients(100.0))
