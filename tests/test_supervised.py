"""The warm start: mean cross-entropy of completions, whatever the packing."""

import numpy as np
import pytest
import torch
from training_batches import (
    CONFIG,
    assert_close,
    config,
    make_groups,
    tiny_decoder,
    trajectories_of,
    weights_of,
)

from freerun.model.attention import full_forward_logits
from freerun.train.optimizer import Optimizer
from freerun.train.supervised import SupervisedTrainer


@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 10_000])
def test_a_supervised_step_descends_the_mean_cross_entropy_of_the_completions(micro_batch_tokens):
    trajectories = trajectories_of(make_groups())
    sequences = [(t.prompt.token_ids, t.completion.token_ids) for t in trajectories]
    model, reference = tiny_decoder(), tiny_decoder()
    loss = SupervisedTrainer(model, config(micro_batch_tokens=micro_batch_tokens)).step(sequences, lr=0.01)

    losses = []
    for prompt, completion in sequences:
        ids = [*prompt.tolist(), *completion.tolist()]
        table = torch.log_softmax(full_forward_logits(reference, ids), dim=-1)
        losses += [-table[i - 1, ids[i]] for i in range(len(prompt), len(ids))]
    expected = torch.stack(losses).mean()
    expected.backward()
    Optimizer(reference, CONFIG).update(lr=0.01)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert_close(weights_of(model), weights_of(reference))


def test_a_warm_start_learns_its_demonstrations():
    sequences = [(np.array([i], np.int32), np.array([i + 1, 0], np.int32)) for i in range(1, 9)]
    trainer = SupervisedTrainer(tiny_decoder(), CONFIG)
    losses = [trainer.step(sequences, lr=0.02) for _ in range(40)]
    assert losses[0] > 2
    assert losses[-1] < 0.1
