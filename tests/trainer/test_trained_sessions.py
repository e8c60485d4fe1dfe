"""Sessions of several calls: however a session becomes sequences, it is trained on in the same way."""

from dataclasses import replace as changed
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_trainers import assert_gradients, packed_trainer, some_critic, some_reference
from sessions import Session, as_few_sequences_as_possible, as_sequences, make_sessions, one_sequence_per_call
from slow_objectives import ADVANTAGE, PUBLISHED, SlowTrainer, slow_m2_mask
from torch import Tensor
from training_batches import (
    MAX_COMPLETION_TOKENS,
    TEMPERATURE,
    VERSION,
    config,
    first_gradients,
    make_trainer,
    rated,
    replace,
    tiny_decoder,
    trajectories_of,
)

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.trainer.batch import MicroBatch, pack_trajectories
from freerun.trainer.logprobs import PolicyOutputs, completion_logprobs, policy_outputs
from freerun.trainer.loss import Loss, compute_loss
from freerun.trainer.phases import PhaseClock
from freerun.trainer.preparation import prepare
from freerun.trainer.ranks import SingleRank
from freerun.trainer.rating import rate
from freerun.types import Completion, Group, Span, Trajectory

MIXES = {
    "entropy": ObjectiveConfig(advantage="grpo", entropy_coefficient=0.1),
    "gae, discounted": changed(PRESETS["ppo"], gae_gamma=0.9, gae_lambda=0.7),
    "gae, per turn": changed(PRESETS["ppo"], gae_lambda=0.5, turn_discount=0.8),
    "gspo, per turn": changed(PRESETS["gspo"], turn_discount=0.8),
    "areal, per turn": ObjectiveConfig(turn_discount=0.5),
    "per token, per turn": ObjectiveConfig(turn_discount=0.5, advantage_normalisation="token"),
}
OBJECTIVES = {**PRESETS, **MIXES}


def near_policy(groups: list[Group], seed: int = 0) -> list[Group]:
    """Behaviour close to the policy but for some tokens far away: every clip and mask acts on some tokens.

    The noise of a token depends on the token and its context alone, so it is the same in every form of a session.
    """

    def behaviour(t: Trajectory) -> dict[str, Any]:
        logprobs = np.zeros(len(t.completion.token_ids), np.float32)
        for i in np.flatnonzero(t.completion.is_sampled):
            ids = [*t.prompt.token_ids.tolist(), *t.completion.token_ids[: i + 1].tolist()]
            rng = np.random.default_rng([seed, *ids])
            with torch.no_grad():
                known = torch.log_softmax(full_forward_logits(MODEL, ids[:-1])[-1] / TEMPERATURE, -1)[ids[-1]]
            logprobs[i] = float(known) + rng.normal(0, 0.15) + rng.choice([0.0, 2.0, -2.0], p=[0.8, 0.1, 0.1])
        return {"logprobs": logprobs}

    return replace(groups, completion=behaviour)


MODEL = tiny_decoder()


def trained(
    groups: list[Group], objective: ObjectiveConfig, micro_batch_tokens: int = 40
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and gradients of one update."""
    trainer = packed_trainer(tiny_decoder(), config(micro_batch_tokens=micro_batch_tokens), objective)
    return trainer.step(groups).metrics, first_gradients(trainer)


def assert_same_training(one: list[Group], other: list[Group], objective: ObjectiveConfig) -> None:
    (metrics, gradients), (other_metrics, other_gradients) = trained(one, objective), trained(other, objective)
    assert metrics["loss"] == pytest.approx(other_metrics["loss"], abs=1e-6)
    assert metrics["grad_norm"] > 1e-3
    assert gradients.keys() == other_gradients.keys()
    for name, gradient in gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(gradient, other_gradients[name], rtol=0, atol=1e-6 * scale, msg=name)
    for name in ("reward", "accuracy", "completion_length", "num_tokens", "num_calls", "staleness_mean"):
        assert metrics[name] == pytest.approx(other_metrics[name])


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("branches", [False, True], ids=["in one line", "in branches"])
def test_a_session_trains_alike_as_one_sequence_per_call_and_as_few_as_possible(name: Any, branches: bool) -> None:
    sessions = make_sessions(branches=branches)
    whole, apart = as_few_sequences_as_possible(sessions), one_sequence_per_call(sessions)
    num_sequences = [len(group.trajectories) for group in whole]
    assert (max(num_sequences) > 3) == branches
    assert_same_training(near_policy(whole), near_policy(apart), OBJECTIVES[name])


def trained_away_from_the_proximal_policy(
    groups: list[Group], objective: ObjectiveConfig
) -> tuple[Loss, tuple[Tensor, ...]]:
    """Loss and gradients of a policy that has moved since the start of the step, so that clips act."""
    critic = some_critic() if objective.has_critic else None
    rated_trajectories, timeline = rate(groups, objective, max_completion_tokens=MAX_COMPLETION_TOKENS)

    def look(model: Decoder, batch: MicroBatch) -> PolicyOutputs:
        return policy_outputs(
            model,
            batch.packed,
            temperature=TEMPERATURE,
            critic=critic,
            with_entropies=objective.entropy_coefficient > 0,
        )

    # In the second minibatch, because the first one is trained with the proximal weights.
    _, [batch] = prepare(
        [[], [pack_trajectories(rated_trajectories)]],
        objective,
        policy=lambda batch: look(MODEL, batch),
        reference=lambda batch: look(MODEL, batch),
        timeline=timeline,
        on_progress=lambda *_: None,
        phases=PhaseClock(),
        ranks=SingleRank(),
    )
    moved = some_reference(distance=0.5).requires_grad_(True)
    proximal = batch.proximal_logprobs_L
    loss = compute_loss(look(moved, batch), batch, proximal_logprobs_L=proximal, objective=objective)
    return loss, torch.autograd.grad(loss.total, list(moved.parameters()))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_clips_hold_back_the_same_tokens_in_every_form(name: Any) -> None:
    sessions, objective = make_sessions(branches=True), OBJECTIVES[name]
    whole, apart = as_few_sequences_as_possible(sessions), one_sequence_per_call(sessions)
    loss, gradients = trained_away_from_the_proximal_policy(near_policy(whole), objective)
    other_loss, other_gradients = trained_away_from_the_proximal_policy(near_policy(apart), objective)
    assert loss.total.item() == pytest.approx(other_loss.total.item(), abs=1e-6)
    assert (loss.num_clipped, loss.num_masked) == (other_loss.num_clipped, other_loss.num_masked)
    assert (loss.num_clipped > 0) == (objective.clip in ("ppo", "dual", "cispo"))
    for gradient, other in zip(gradients, other_gradients, strict=True):
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_rewards_per_turn_train_alike_in_every_form(name: Any) -> None:
    sessions = make_sessions(seed=1, branches=True, has_turns=True)
    whole, apart = as_few_sequences_as_possible(sessions), one_sequence_per_call(sessions)
    assert_same_training(near_policy(whole), near_policy(apart), OBJECTIVES[name])


@pytest.mark.parametrize("name", PUBLISHED)
def test_loss_and_gradient_are_those_of_the_published_equation_over_all_calls(name: Any) -> None:
    sessions = make_sessions(seed=2, branches=True)
    apart = near_policy(one_sequence_per_call(sessions))
    metrics, gradients = trained(near_policy(as_few_sequences_as_possible(sessions)), PRESETS[name])
    slow = SlowTrainer(tiny_decoder(), config(), critic=some_critic() if ADVANTAGE[name] == "gae" else None)
    step = slow.start(apart, ADVANTAGE[name])
    if name == "m2po":
        slow_m2_mask(step, 0.04)
    loss, expected = slow.run(step, PUBLISHED[name], skips_zero=name != "ppo")
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6, rel=1e-5)
    assert_gradients(gradients, expected[0])


@pytest.mark.parametrize("micro_batch_tokens", [1, 25, 10_000])
def test_packing_changes_nothing(micro_batch_tokens: int) -> None:
    groups = near_policy(as_few_sequences_as_possible(make_sessions(branches=True)))
    _, gradients = trained(groups, PRESETS["grpo"], micro_batch_tokens)
    _, expected = trained(groups, PRESETS["grpo"])
    assert_gradients(gradients, expected)


@given(seed=st.integers(0, 10_000), branches=st.booleans())
@settings(max_examples=25, deadline=None)
def test_packed_logprobs_are_those_of_single_sequences(seed: int, branches: bool) -> None:
    groups = as_few_sequences_as_possible(make_sessions(seed, num_groups=2, branches=branches))
    trajectories = trajectories_of(groups)
    micro_batch = pack_trajectories([rated(t, 1.0, 0.5) for t in trajectories])
    with torch.no_grad():
        packed = completion_logprobs(MODEL, micro_batch.packed, temperature=TEMPERATURE)
    expected = []
    for t in trajectories:
        ids = [*t.prompt.token_ids.tolist(), *t.completion.token_ids.tolist()]
        with torch.no_grad():
            table = torch.log_softmax(full_forward_logits(MODEL, ids) / TEMPERATURE, -1)
        at = [len(t.prompt.token_ids) + int(i) for i in np.flatnonzero(t.completion.is_sampled)]
        expected += [float(table[i - 1, ids[i]]) for i in at]
    assert packed.tolist() == pytest.approx(expected, abs=1e-5)


@given(seed=st.integers(0, 10_000), branches=st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_sampled_token_is_trained_once_with_its_own_logprob_version_and_call(
    seed: int, branches: bool
) -> None:
    sessions = make_sessions(seed, num_groups=2, branches=branches)

    def rows(trajectories: list[Trajectory]) -> list[tuple[Any, ...]]:
        batch = pack_trajectories([rated(t, t.reward.value, 0.5) for t in trajectories])
        columns = (
            batch.packed.targets_L,
            batch.behaviour_logprobs_L,
            batch.versions_L,
            batch.advantages_L,
            batch.token_weights_L,
        )
        assert int(batch.call_lengths_K.sum()) == batch.packed.num_loss_tokens
        return sorted(zip(*(column.tolist() for column in columns), strict=True))

    whole = trajectories_of(as_few_sequences_as_possible(sessions))
    apart = trajectories_of(one_sequence_per_call(sessions))
    assert rows(whole) == rows(apart)
    expected = [
        (token, np.float32(logprob))
        for session in flat(sessions)
        for call in session.calls
        for token, logprob in zip(call.token_ids, call.logprobs, strict=True)
    ]
    assert [(token, np.float32(logprob)) for token, logprob, *_ in rows(whole)] == sorted(expected)


def flat(sessions: list[list[Session]]) -> list[Session]:
    return [session for group in sessions for session in group]


def test_first_prompts_are_computed_once_though_sessions_have_several_parts() -> None:
    """The parts of a session come one after the other, so equal prompts are not neighbours."""
    sessions = make_sessions(seed=0, num_groups=1, group_size=6, branches=True)
    same_start = [changed(s, calls=[changed(s.calls[0], given=[]), *s.calls[1:]]) for s in flat(sessions)]
    groups = as_few_sequences_as_possible([same_start])
    assert len(groups[0].trajectories) > 6
    model, seen = tiny_decoder(), []
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    make_trainer(model, config(num_minibatches=1, micro_batch_tokens=10_000)).step(groups)
    sequences = trajectories_of(groups)
    prompts = {t.prompt.token_ids.tobytes(): len(t.prompt.token_ids) for t in sequences}
    assert seen == [sum(prompts.values()) + sum(len(t.completion.token_ids) - 1 for t in sequences)]
    assert len(prompts) < len(sequences)


def test_a_session_counts_once_with_its_sampled_tokens_and_its_oldest_version() -> None:
    sessions = make_sessions(seed=4, branches=True)
    metrics, _ = trained(as_few_sequences_as_possible(sessions), ObjectiveConfig())
    every = flat(sessions)
    num_sampled = sum(len(call.token_ids) for session in every for call in session.calls)
    oldest = [min(span.version or 0 for call in s.calls for span in call.spans) for s in every]
    expected = {
        "reward": np.mean([s.reward.value for s in every]),
        "accuracy": np.mean([s.reward.is_correct for s in every]),
        "completion_length": num_sampled / len(every),
        "num_tokens": num_sampled,
        "num_calls": np.mean([len(s.calls) for s in every]),
        "num_sequences": np.mean([len(as_sequences(s)) for s in every]),
        "staleness_mean": VERSION - np.mean(oldest),
        "staleness_max": VERSION - min(oldest),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics["num_sequence_tokens"] > metrics["num_tokens"]


def test_several_minibatches_may_divide_a_session() -> None:
    groups = near_policy(as_few_sequences_as_possible(make_sessions(branches=True)))
    trainer = make_trainer(tiny_decoder(), config(num_minibatches=4))
    metrics = trainer.step(groups).metrics
    assert metrics["grad_norm"] > 0
    assert metrics["clip_fraction"] > 0


def step_with(**completion: Any) -> None:
    groups = as_few_sequences_as_possible(make_sessions(num_groups=1))
    make_trainer(tiny_decoder()).step(replace(groups, completion=lambda _: completion))


def given_around(*spans: Span) -> dict[str, Any]:
    num_tokens = sum(span.num_tokens for span in spans)
    whole = Completion(
        token_ids=np.ones(num_tokens, np.int32),
        logprobs=np.zeros(num_tokens, np.float32),
        spans=spans,
        finish_reason="stop",
        text="",
    )
    return msgspec.structs.asdict(whole)


@pytest.mark.parametrize(
    "spans",
    [(Span(None, 2), Span(1, 1)), (Span(1, 1), Span(None, 2)), (Span(None, 3),)],
    ids=["begins", "ends", "nothing sampled"],
)
def test_a_completion_that_begins_or_ends_with_a_given_token_is_refused(spans: tuple[Span, ...]) -> None:
    with pytest.raises(ValueError, match=r"trajectory 0/0 begins or ends with a given token; put what precedes"):
        step_with(**given_around(*spans))


def test_behaviour_logprobs_of_given_tokens_are_refused() -> None:
    completion = given_around(Span(1, 1), Span(None, 1), Span(1, 1, call=1))
    with pytest.raises(ValueError, match=r"trajectory 0/0 has behaviour logprobs of given tokens"):
        step_with(**(completion | {"logprobs": np.array([-1.0, -1.0, -1.0], np.float32)}))


def test_calls_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens of an earlier call after those of a later one"):
        step_with(**given_around(Span(1, 1, call=1), Span(None, 1), Span(1, 1, call=0)))
