"""Supervised steps: mean cross-entropy of the trained tokens, whatever the packing."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from training_batches import (
    CONFIG,
    VOCABULARY,
    assert_close,
    config,
    make_groups,
    tiny_decoder,
    trajectories_of,
    weights_of,
)

from freerun.data.demonstrations import demonstration_of
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.session.sft import cosine_learning_rate
from freerun.trainer.optimizer import Optimizer
from freerun.trainer.supervised import SupervisedTrainer
from freerun.types import Demonstration, Doing


def completions() -> list[Demonstration]:
    """Prompts with completions, as a task demonstrates them."""
    trajectories = trajectories_of(make_groups())
    return [demonstration_of(t.prompt.token_ids, t.completion.token_ids) for t in trajectories]


def chats() -> list[Demonstration]:
    """Trained tokens anywhere but at the beginning, as in chats of several turns."""
    rng = np.random.default_rng(3)
    rows = []
    for length in (2, 9, 30, 17, 9):
        is_trained = rng.random(length) < 0.4
        is_trained[0], is_trained[rng.integers(1, length)] = False, True
        ids = rng.integers(0, VOCABULARY, length).astype(np.int32)
        rows.append(Demonstration(token_ids=ids, is_trained=is_trained))
    return rows


def reference_loss(model: Decoder, rows: list[Demonstration]) -> Tensor:
    """One sequence at a time, one token at a time."""
    losses = []
    for row in rows:
        ids = row.token_ids.tolist()
        table = torch.log_softmax(full_forward_logits(model, ids), dim=-1)
        losses += [-table[i - 1, ids[i]] for i in range(len(ids)) if row.is_trained[i]]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("rows", [completions(), chats()], ids=["completions", "chats"])
@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 10_000])
def test_a_packed_step_is_the_step_of_one_sequence_after_the_other(
    rows: list[Demonstration], micro_batch_tokens: int
) -> None:
    model, reference = tiny_decoder(), tiny_decoder()
    trainer = SupervisedTrainer(model, config(micro_batch_tokens=micro_batch_tokens))
    measured = trainer.loss(rows)
    loss = trainer.step(rows, lr=0.01)

    expected = reference_loss(reference, rows)
    expected.backward()
    Optimizer(reference, CONFIG).update(lr=0.01)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert measured == pytest.approx(loss, rel=1e-5)
    assert_close(weights_of(model), weights_of(reference))


def test_measuring_says_how_far_it_is_so_that_it_is_not_taken_for_a_stall() -> None:
    said: list[Doing] = []
    trainer = SupervisedTrainer(tiny_decoder(), config(micro_batch_tokens=1), on_progress=said.append)
    trainer.loss(chats())
    assert [(doing.num_done, doing.num_total) for doing in said] == [(n, 5) for n in range(1, 6)]


def test_sft_learns_its_demonstrations() -> None:
    rows = [demonstration_of(np.array([i], np.int32), np.array([i + 1, 0], np.int32)) for i in range(1, 9)]
    trainer = SupervisedTrainer(tiny_decoder(), CONFIG)
    losses = [trainer.step(rows, lr=0.02) for _ in range(40)]
    assert losses[0] > 2
    assert losses[-1] < 0.1


def test_the_learning_rate_rises_to_its_peak_and_falls_to_a_tenth() -> None:
    rates = [cosine_learning_rate(step, num_steps=100, peak=1.0, ramp_steps=10) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(max(rates[8:12]))
    assert all(after < before for before, after in pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert cosine_learning_rate(0, num_steps=5, peak=1.0, ramp_steps=0) == 1.0
