"""Equation 5 and PPO against loops over single tokens in plain Python, and the facts that tell them apart."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from freerun.config.objective import ObjectiveConfig
from freerun.trainer.batch import MicroBatch, pack_sequences
from freerun.trainer.logprobs import PolicyOutputs
from freerun.trainer.loss import Loss, compute_loss

torch.set_num_threads(1)

LOGPROB = st.floats(-6, -0.01)
TOKENS = st.lists(st.tuples(LOGPROB, LOGPROB, LOGPROB, st.floats(-3, 3)), min_size=1, max_size=12)
CLIP = 0.2


def columns(tokens: list[tuple[float, float, float, float]]) -> list[Tensor]:
    """Current, proximal, behaviour logprobs and advantages, in double precision."""
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]


def clipped_term(ratio: float, advantage: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1 - CLIP), 1 + CLIP) * advantage)


def loss_of(current: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, correction: Any) -> Loss:
    """The loss of one completion whose tokens each weigh 1."""
    num_tokens = len(current)
    micro_batch = MicroBatch(
        packed=pack_sequences([(np.array([1]), np.arange(num_tokens))]),
        call_lengths_K=torch.tensor([num_tokens]),
        behaviour_logprobs_L=behaviour,
        versions_L=torch.zeros(num_tokens),
        advantages_L=advantages,
        token_weights_L=torch.ones(num_tokens),
    )
    objective = ObjectiveConfig(correction=correction, clip_low=CLIP, clip_high=CLIP)
    return compute_loss(PolicyOutputs(current), micro_batch, proximal_logprobs_L=proximal, objective=objective)


def decoupled(current: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor) -> Loss:
    return loss_of(current, proximal, behaviour, advantages, "decoupled")


def naive(current: Tensor, behaviour: Tensor, advantages: Tensor) -> Loss:
    return loss_of(current, torch.full_like(current, torch.nan), behaviour, advantages, "none")


@given(TOKENS)
def test_decoupled_loss_is_equation_5_token_by_token(tokens: list[tuple[float, float, float, float]]) -> None:
    expected = -sum(math.exp(p - b) * clipped_term(math.exp(c - p), a) for c, p, b, a in tokens)
    assert float(decoupled(*columns(tokens)).total) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(TOKENS)
def test_naive_loss_is_ppo_around_the_behaviour_token_by_token(
    tokens: list[tuple[float, float, float, float]],
) -> None:
    expected = -sum(clipped_term(math.exp(c - b), a) for c, _, b, a in tokens)
    current, _, behaviour, advantages = columns(tokens)
    assert float(naive(current, behaviour, advantages).total) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(TOKENS)
def test_naive_and_decoupled_agree_when_the_behaviour_is_the_proximal_policy(
    tokens: list[tuple[float, float, float, float]],
) -> None:
    current, proximal, _, advantages = columns(tokens)
    current.requires_grad_()
    ours, theirs = decoupled(current, proximal, proximal, advantages), naive(current, proximal, advantages)
    assert torch.equal(ours.total, theirs.total)
    assert ours.num_clipped == theirs.num_clipped
    assert torch.equal(torch.autograd.grad(ours.total, current)[0], torch.autograd.grad(theirs.total, current)[0])


def test_the_behaviour_weight_scales_the_gradient_but_does_not_move_the_trust_region() -> None:
    # The behaviour gave this token a tenth of the proximal probability: a naive ratio of 10 is far outside
    # the clip and has no gradient; decoupled, the token stands at the centre of the region and weighs 10.
    current, proximal, behaviour, advantage = columns([(-1.0, -1.0, -1.0 - math.log(10), 1.0)])
    current.requires_grad_()
    ours, theirs = decoupled(current, proximal, behaviour, advantage), naive(current, behaviour, advantage)
    assert torch.autograd.grad(ours.total, current)[0].item() == pytest.approx(-10)
    assert torch.autograd.grad(theirs.total, current)[0].item() == 0
    assert (ours.num_clipped, theirs.num_clipped) == (0, 1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_clipped"),
    [
        (1.5, 1.0, True),
        (1.5, -1.0, False),
        (0.5, -1.0, True),
        (0.5, 1.0, False),
        (1.1, 1.0, False),
        (1.5, 0.0, False),
    ],
)
def test_only_a_token_that_already_moved_the_right_way_is_clipped(
    ratio: float, advantage: float, is_clipped: bool
) -> None:
    current, proximal, behaviour, advantages = columns([(math.log(ratio) - 1, -1.0, -1.3, advantage)])
    current.requires_grad_()
    loss = decoupled(current, proximal, behaviour, advantages)
    gradient = torch.autograd.grad(loss.total, current)[0].item()
    assert loss.num_clipped == is_clipped
    assert (gradient == 0) == (is_clipped or advantage == 0)
