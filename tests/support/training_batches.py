"""Tiny decoders and random batches for the tests of training."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from tiny_models import TINY, random_model
from torch import Tensor

from freerun.config.objective import ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.trainer.batch import Rated
from freerun.trainer.optimizer import BETAS
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory

torch.set_num_threads(1)

SHAPE = dataclasses.replace(TINY, has_qkv_bias=True)
VOCABULARY = SHAPE.vocab_size
VERSION = 5
TEMPERATURE = 0.7
MAX_COMPLETION_TOKENS = 12
OBJECTIVE = ObjectiveConfig()
NAIVE = ObjectiveConfig(correction="none")
# A large Adam epsilon keeps the updates smooth in the gradient, so that weights can be compared closely; a
# large norm limit keeps clipping out of the way, and a wide step makes the minibatches really differ.
CONFIG = TrainConfig(
    lr=0.02, adam_eps=1e-2, max_grad_norm=1e6, micro_batch_tokens=40, num_minibatches=1, weight_decay=0.1
)


def config(**changes: Any) -> TrainConfig:
    return dataclasses.replace(CONFIG, **changes)


def tiny_decoder(seed: int = 0) -> Decoder:
    return random_model(seed, SHAPE)


def make_trajectory(rng: np.random.Generator, prompt: Prompt, sample: int, reward: float) -> Trajectory:
    """One to MAX_COMPLETION_TOKENS tokens in one to three spans that end at some version up to the trainer's."""
    num_tokens = int(rng.integers(1, MAX_COMPLETION_TOKENS + 1))
    num_spans = int(rng.integers(1, min(3, num_tokens) + 1))
    cuts = [0, *sorted(rng.choice(np.arange(1, num_tokens), num_spans - 1, replace=False)), num_tokens]
    newest = VERSION - int(rng.integers(0, 2))
    spans = tuple(Span(newest - num_spans + 1 + s, int(cuts[s + 1] - cuts[s])) for s in range(num_spans))
    completion = Completion(
        token_ids=rng.integers(0, VOCABULARY, num_tokens).astype(np.int32),
        logprobs=rng.normal(-3, 0.5, num_tokens).astype(np.float32),
        spans=spans,
        finish_reason="stop",
        text="",
    )
    return Trajectory(
        prompt=prompt,
        sample=sample,
        completion=completion,
        reward=Reward(value=reward, is_correct=reward > 0),
    )


def make_groups(seed: int = 0, *, num_groups: int = 4, group_size: int = 4) -> list[Group]:
    rng = np.random.default_rng(seed)
    groups = []
    for ordinal in range(num_groups):
        token_ids = rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).astype(np.int32)
        prompt = Prompt(ordinal=ordinal, key="", text="", answer="", token_ids=token_ids)
        rewards = rng.normal(0, 3, group_size)
        trajectories = tuple(make_trajectory(rng, prompt, i, float(r)) for i, r in enumerate(rewards))
        groups.append(Group(ordinal=ordinal, start_version=0, trajectories=trajectories))
    return groups


def replace(
    groups: list[Group],
    *,
    completion: Callable[[Trajectory], dict[str, Any]] = lambda _: {},
    reward: Callable[[Trajectory], Reward] = lambda t: t.reward,
) -> list[Group]:
    """The same groups with other completion fields or other rewards, trajectory by trajectory."""

    def changed(t: Trajectory) -> Trajectory:
        return msgspec.structs.replace(
            t, completion=msgspec.structs.replace(t.completion, **completion(t)), reward=reward(t)
        )

    return [msgspec.structs.replace(g, trajectories=tuple(changed(t) for t in g.trajectories)) for g in groups]


def rated(trajectory: Trajectory, advantage: float, token_weight: float) -> Rated:
    """The trajectory with one advantage for all its sampled tokens."""
    return Rated(trajectory, np.full(trajectory.completion.num_sampled, advantage), token_weight)


def trajectories_of(groups: list[Group]) -> list[Trajectory]:
    return [t for g in groups for t in g.trajectories]


def make_trainer(
    model: Decoder, train: TrainConfig = CONFIG, objective: ObjectiveConfig = OBJECTIVE, **options: Any
) -> PolicyTrainer:
    settings: dict[str, Any] = {
        "temperature": TEMPERATURE,
        "max_completion_tokens": MAX_COMPLETION_TOKENS,
        "version": VERSION,
    }
    return PolicyTrainer(model, train, objective, **(settings | options))


def weights_of(model: Decoder) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=tolerance, atol=tolerance, msg=name)


def first_gradients(trainer: PolicyTrainer) -> dict[str, Tensor]:
    """What the only update so far was given: AdamW's first moment is then (1 - BETAS[0]) times the gradient."""
    prefix = "exp_avg."
    return {
        name.removeprefix(prefix): moment / (1 - BETAS[0])
        for name, moment in trainer.optimizer_state().items()
        if name.startswith(prefix)
    }


def reference_logprobs(model: Decoder, t: Trajectory) -> list[Tensor]:
    ids = [*t.prompt.token_ids.tolist(), *t.completion.token_ids.tolist()]
    table = torch.log_softmax(full_forward_logits(model, ids) / TEMPERATURE, dim=-1)
    return [table[i - 1, ids[i]] for i in range(len(t.prompt.token_ids), len(ids))]
