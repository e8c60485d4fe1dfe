"""A training step against brute force: one unpacked sequence at a time, token by token, in plain torch."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from slow_objectives import gradient_of
from torch import Tensor
from training_batches import (
    CONFIG,
    NAIVE,
    OBJECTIVE,
    TEMPERATURE,
    VERSION,
    VOCABULARY,
    assert_close,
    config,
    first_gradients,
    make_groups,
    make_trainer,
    rated,
    reference_logprobs,
    replace,
    same_bits,
    tiny_decoder,
    trajectories_of,
    weights_of,
)

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.config.values import MAX_REWARD
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.trainer.batch import pack_trajectories
from freerun.trainer.logprobs import completion_logprobs, policy_outputs
from freerun.trainer.loss import compute_loss
from freerun.trainer.packing import deal_minibatches
from freerun.types import (
    Completion,
    Doing,
    Group,
    Prompt,
    Reward,
    Span,
    StepResult,
    Trajectory,
    decoder_for,
    encode,
)

# The reference: written without the package's batch, logprobs, loss, advantage and optimizer modules.


def reference_loss(
    model: Decoder, t: Trajectory, advantage: float, proximal: list[float], correction: str
) -> Tensor:
    total = torch.zeros(())
    for current, prox, behaviour in zip(
        reference_logprobs(model, t), proximal, t.completion.logprobs.tolist(), strict=True
    ):
        centre, weight = (prox, np.exp(prox - behaviour)) if correction == "decoupled" else (behaviour, 1.0)
        ratio = torch.exp(current - centre)
        clipped = min(max(ratio, torch.tensor(0.8)), torch.tensor(1.2))
        total = total - weight * min(ratio * advantage, clipped * advantage)
    return total


def reference_advantages(groups: list[Group], scope: str) -> list[float]:
    rewards = [[t.reward.value for t in g.trajectories] for g in groups]
    everything = [r for group in rewards for r in group]
    return [
        float((r - np.mean(peers)) / (np.std(peers) + 1e-6))
        for group in rewards
        for r in group
        for peers in [group if scope == "grpo" else everything]
    ]


def reference_step(
    model: Decoder, groups: list[Group], train: TrainConfig, objective: ObjectiveConfig = OBJECTIVE
) -> tuple[float, list[dict[str, Tensor]]]:
    """Train `model` on the groups; returns the step's loss per token and the gradients of each update."""
    trajectories = trajectories_of(groups)
    advantages = reference_advantages(groups, objective.advantage)
    with torch.no_grad():
        proximal = [[float(p) for p in reference_logprobs(model, t)] for t in trajectories]
    lengths = [len(t.prompt.token_ids) + len(t.completion.token_ids) - 1 for t in trajectories]
    num_tokens = sum(len(t.completion.token_ids) for t in trajectories)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    parameters: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(
        parameters,
        lr=train.lr,
        betas=(0.9, 0.95),
        eps=train.adam_eps,
        weight_decay=train.weight_decay,
        foreach=False,
    )
    mean_loss, gradients = 0.0, []
    for part in deal_minibatches(lengths, train.num_minibatches):
        losses = [
            reference_loss(model, trajectories[i], advantages[i], proximal[i], objective.correction) for i in part
        ]
        total = torch.stack(losses).sum()
        adamw.zero_grad()
        (total * train.num_minibatches / num_tokens).backward()
        gradients.append({name: gradient_of(p) for name, p in model.named_parameters()})
        adamw.step()
        mean_loss += float(total.detach()) / num_tokens
    return mean_loss, gradients


@pytest.mark.parametrize("correction", ["decoupled", "none"])
@pytest.mark.parametrize("advantage", ["global", "grpo"])
def test_loss_and_gradients_are_those_of_a_loop_over_single_sequences(correction: Any, advantage: Any) -> None:
    objective = ObjectiveConfig(correction=correction, advantage=advantage)
    model, groups = tiny_decoder(), make_groups()
    trainer = make_trainer(model, objective=objective)
    result = trainer.step(groups)
    loss, gradients = reference_step(tiny_decoder(), groups, CONFIG, objective)
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert_close(first_gradients(trainer), gradients[0])
    norm = float(torch.stack([g.square().sum() for g in gradients[0].values()]).sum().sqrt())
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("objective", [OBJECTIVE, NAIVE], ids=["decoupled", "none"])
@pytest.mark.parametrize("num_minibatches", [2, 4])
def test_several_minibatches_make_the_updates_of_a_loop_over_single_sequences(
    objective: ObjectiveConfig, num_minibatches: int
) -> None:
    train = config(num_minibatches=num_minibatches)
    model, reference, groups = tiny_decoder(), tiny_decoder(), make_groups()
    result = make_trainer(model, train, objective).step(groups)
    loss, _ = reference_step(reference, groups, train, objective)
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-5)
    # Without clipped tokens in the later minibatches this would prove little.
    assert result.metrics["clip_fraction"] > 0.05
    assert_close(weights_of(model), weights_of(reference))


@pytest.mark.parametrize("micro_batch_tokens", [1, 17, 10_000])
def test_the_size_of_micro_batches_does_not_change_the_gradients(micro_batch_tokens: int) -> None:
    groups = make_groups()
    packed = make_trainer(tiny_decoder(), config(micro_batch_tokens=micro_batch_tokens))
    expected = make_trainer(tiny_decoder(), config(micro_batch_tokens=40))
    packed.step(groups)
    expected.step(groups)
    assert_close(first_gradients(packed), first_gradients(expected))


def test_the_first_minibatch_needs_no_proximal_forward_because_its_own_has_the_same_bits() -> None:
    model, groups = tiny_decoder(), make_groups()
    micro_batch = pack_trajectories([rated(t, 1.0 - t.sample, 0.1) for t in trajectories_of(groups)])
    with torch.no_grad():
        explicit = completion_logprobs(model, micro_batch.packed, temperature=TEMPERATURE)
    outcomes = []
    for proximal in (explicit, None):
        outputs = policy_outputs(model, micro_batch.packed, temperature=TEMPERATURE)
        loss = compute_loss(
            outputs,
            micro_batch,
            proximal_logprobs_L=outputs.logprobs_L.detach() if proximal is None else proximal,
            objective=OBJECTIVE,
        )
        gradients = torch.autograd.grad(loss.total, list(model.parameters()))
        outcomes.append({"loss": loss.total, **{str(i): g for i, g in enumerate(gradients)}})
    assert same_bits(*outcomes)


@pytest.mark.parametrize(("correction", "num_proximal"), [("decoupled", 3), ("none", 0), ("m2po", 4)])
def test_proximal_forwards_are_made_only_where_the_objective_needs_them(
    correction: Any, num_proximal: int
) -> None:
    reports: list[Doing] = []
    forwards: list[int] = []
    model = tiny_decoder()
    model.register_forward_hook(lambda *_: forwards.append(1))
    train = config(num_minibatches=4, micro_batch_tokens=10_000)
    objective = ObjectiveConfig(correction=correction)
    make_trainer(model, train, objective, on_progress=reports.append).step(make_groups())
    assert len(forwards) == num_proximal + 4
    said = Counter(report.what for report in reports)
    assert said["proximal"] == num_proximal
    assert said["gradients"] == said["update of the weights"] == 4
    assert reports[-1] == Doing("training", "update of the weights", 4, 4)


def test_decoupled_and_no_correction_train_alike_when_the_behaviour_is_the_proximal_policy() -> None:
    with torch.no_grad():
        model = tiny_decoder()
        groups = replace(
            make_groups(),
            completion=lambda t: {"logprobs": np.array(reference_logprobs(model, t), np.float32)},
        )
    models = [tiny_decoder(), tiny_decoder()]
    for model, objective in zip(models, [OBJECTIVE, NAIVE], strict=True):
        make_trainer(model, config(num_minibatches=4), objective).step(groups)
    assert_close(weights_of(models[0]), weights_of(models[1]))


def test_trajectories_without_advantage_are_not_computed_and_change_nothing_but_the_divisor() -> None:
    objective = ObjectiveConfig(advantage="grpo")
    groups = make_groups()
    flat = replace(make_groups(seed=1, num_groups=2), reward=lambda _: Reward(0.1, False))
    model, seen = tiny_decoder(), []
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    trainer = make_trainer(model, objective=objective)
    trainer.step([*groups, *flat])
    _, gradients = reference_step(tiny_decoder(), [*groups, *flat], CONFIG, objective)
    assert_close(first_gradients(trainer), gradients[0])
    num_computed = sum(seen)
    seen.clear()
    make_trainer(model, objective=objective).step(groups)
    assert num_computed == sum(seen)


def test_the_prompt_of_a_group_is_computed_once_in_each_minibatch() -> None:
    groups = make_groups()
    model, seen = tiny_decoder(), []
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    make_trainer(model, config(num_minibatches=1, micro_batch_tokens=10_000)).step(groups)
    prompts = sum(len(group.trajectories[0].prompt.token_ids) for group in groups)
    completions = sum(len(t.completion.token_ids) - 1 for t in trajectories_of(groups))
    assert seen == [prompts + completions]


@pytest.mark.parametrize("preset", ["areal", "m2po"])
def test_a_batch_of_equal_rewards_makes_a_version_of_unchanged_weights(preset: Any) -> None:
    groups = replace(make_groups(), reward=lambda _: Reward(0.1, True))
    model = tiny_decoder()
    before = weights_of(model)
    trainer = make_trainer(model, objective=PRESETS[preset])
    result = trainer.step(groups)
    assert result.version == trainer.version == VERSION + 1
    assert same_bits(before, weights_of(model))
    assert result.metrics["loss"] == 0
    assert result.metrics["accuracy"] == 1
    assert "grad_norm" not in result.metrics


def step_at(version: int, groups: list[Group], **changes: Any) -> StepResult:
    return make_trainer(tiny_decoder(), config(**changes), version=version).step(groups)


def test_tokens_newer_than_the_trainer_are_refused_before_anything_changes() -> None:
    model = tiny_decoder()
    before = weights_of(model)
    trainer = make_trainer(model, version=VERSION - 1)
    with pytest.raises(ValueError, match=r"tokens of version 5, but the trainer is at version 4"):
        trainer.step(make_groups())
    assert trainer.version == VERSION - 1
    assert same_bits(before, weights_of(model))


def test_logprobs_or_spans_that_do_not_cover_the_tokens_are_refused() -> None:
    short = replace(make_groups(), completion=lambda t: {"logprobs": t.completion.logprobs[1:]})
    with pytest.raises(ValueError, match="they must be as many"):
        step_at(VERSION, short)
    long = replace(make_groups(), completion=lambda t: {"spans": (*t.completion.spans, Span(VERSION, 1))})
    with pytest.raises(ValueError, match="they must be as many"):
        step_at(VERSION, long)


def test_staleness_is_counted_from_the_oldest_token_of_each_trajectory() -> None:
    groups = make_groups()
    result = step_at(VERSION + 2, groups)
    oldest = [int(t.completion.versions.min()) for t in trajectories_of(groups)]
    expected = [VERSION + 2 - version for version in oldest]
    assert result.metrics["staleness_max"] == max(expected)
    assert result.metrics["staleness_mean"] == pytest.approx(np.mean(expected))
    assert result.staleness_counts == {s: expected.count(s) for s in sorted(set(expected))}


def test_the_metrics_of_a_step_are_those_of_its_batch() -> None:
    groups = make_groups()
    trajectories = trajectories_of(groups)
    metrics = step_at(VERSION, groups).metrics
    with torch.no_grad():
        proximal = np.concatenate([reference_logprobs(tiny_decoder(), t) for t in trajectories]).astype(float)
    behaviour = np.concatenate([t.completion.logprobs for t in trajectories]).astype(float)
    versions = np.concatenate([t.completion.versions for t in trajectories])
    weights = np.exp(proximal - behaviour)
    fresh = weights[versions == VERSION]
    num_prompt_tokens = sum(len(t.prompt.token_ids) for t in trajectories)
    expected = {
        "reward": np.mean([t.reward.value for t in trajectories]),
        "accuracy": np.mean([t.reward.value > 0 for t in trajectories]),
        "completion_length": len(behaviour) / len(trajectories),
        "num_tokens": len(behaviour),
        "num_sequence_tokens": len(behaviour) + num_prompt_tokens,
        "entropy": -proximal.mean(),
        "clip_fraction": 0,
        "behaviour_weight_mean": weights.mean(),
        "behaviour_weight_max": weights.max(),
        "effective_sample_size": weights.mean() ** 2 / (weights**2).mean(),
        "engine_trainer_kl": np.mean(fresh - 1 - np.log(fresh)),
        "lr": CONFIG.lr,
        "num_updates": 1,
        "skipped_updates": 0,
        "reward_std": np.std([t.reward.value for t in trajectories]),
        "empty_share": 1,
        "cut_off_share": 0,
        "distinct_text_share": 1 / 4,
    }
    others = {"grad_norm", "loss", "staleness_mean", "staleness_max", "train_tokens_per_second"}
    others |= {"common_reward", "common_reward_share"}
    assert metrics.keys() == expected.keys() | others
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_each_part_of_the_reward_has_its_mean_over_the_trajectories_that_have_it() -> None:
    def in_parts(t: Trajectory) -> Reward:
        return Reward(1.0, True, {"number": 5.0, "brevity": float(t.sample)} if t.sample < 2 else {"number": -5.0})

    metrics = step_at(VERSION, replace(make_groups(), reward=in_parts)).metrics
    parts = {name: value for name, value in metrics.items() if name.startswith("reward/")}
    assert parts == {"reward/number": 0.0, "reward/brevity": 0.5}


def test_several_minibatches_measure_the_behaviour_against_the_weights_at_the_start() -> None:
    names = ["behaviour_weight_mean", "behaviour_weight_max", "effective_sample_size", "engine_trainer_kl"]
    one, four = (step_at(VERSION, make_groups(), num_minibatches=n).metrics for n in (1, 4))
    assert {n: one[n] for n in names} == pytest.approx({n: four[n] for n in names}, rel=1e-4)


def test_engine_and_trainer_are_compared_only_on_tokens_of_the_trainers_version() -> None:
    assert "engine_trainer_kl" in step_at(VERSION, make_groups()).metrics
    assert "engine_trainer_kl" not in step_at(VERSION + 1, make_groups()).metrics


def test_a_batch_that_came_over_a_socket_trains_like_the_original() -> None:
    groups = make_groups()
    received: list[Group] = decoder_for(list[Group]).decode(encode(groups))
    models = [tiny_decoder(), tiny_decoder()]
    for model, batch in zip(models, [groups, received], strict=True):
        make_trainer(model).step(batch)
    assert same_bits(*map(weights_of, models))


def test_reinforcing_tokens_makes_them_likelier() -> None:
    model = tiny_decoder()
    trainer = make_trainer(model, config(lr=0.01, num_minibatches=2), temperature=1.0, version=0)
    rng = np.random.default_rng(0)
    prompt = Prompt(ordinal=0, key="", text="", answer="", token_ids=np.array([1, 2], np.int32))

    def probabilities() -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(full_forward_logits(model, [1, 2])[-1].double(), dim=-1).numpy()

    def sample(index: int) -> Trajectory:
        token = int(rng.choice(VOCABULARY, p=probabilities()))
        completion = Completion(
            token_ids=np.array([token], np.int32),
            logprobs=np.log(probabilities()[[token]]).astype(np.float32),
            spans=(Span(trainer.version, 1),),
            finish_reason="length",
            text="",
        )
        reward = Reward(value=float(token >= 20), is_correct=token >= 20)
        return Trajectory(prompt=prompt, sample=index, completion=completion, reward=reward)

    before = probabilities()[20:].sum()
    for _ in range(15):
        trajectories = tuple(sample(i) for i in range(32))
        trainer.step([Group(ordinal=0, start_version=trainer.version, trajectories=trajectories)])
    assert before < 0.5
    assert probabilities()[20:].sum() > 0.9


def test_engine_and_trainer_are_not_compared_on_truncated_distributions() -> None:
    fresh = [
        make_trainer(tiny_decoder(), is_truncated=value).step(make_groups()).metrics for value in (False, True)
    ]
    assert "engine_trainer_kl" in fresh[0]
    assert "engine_trainer_kl" not in fresh[1]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_largest_rewards_that_graders_may_give_still_train(preset: Any) -> None:
    model = tiny_decoder()
    groups = replace(make_groups(), reward=lambda t: Reward(MAX_REWARD * (1 if t.sample % 2 else -1), True))
    metrics = make_trainer(model, config(max_grad_norm=1.0), PRESETS[preset]).step(groups).metrics
    assert metrics["skipped_updates"] == 0
    assert metrics["grad_norm"] > 0
    assert not same_bits(weights_of(model), weights_of(tiny_decoder()))
