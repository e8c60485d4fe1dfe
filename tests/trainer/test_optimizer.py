"""Updates that are applied, skipped, warmed up, clipped and restored."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from training_batches import (
    CONFIG,
    VERSION,
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

from freerun.config.train import TrainConfig
from freerun.errors import CheckpointError
from freerun.trainer.optimizer import Optimizer, learning_rate

TESTS = Path(__file__).parents[1]


def test_an_update_that_is_not_finite_is_skipped_and_counted_and_leaves_everything_alone() -> None:
    # exp(200) overflows: an engine that reports an impossible logprob must not destroy the policy.
    poisoned = replace(make_groups(1), completion=lambda t: {"logprobs": t.completion.logprobs - 200})
    model = tiny_decoder()
    trainer = make_trainer(model, config(warmup_updates=10))
    trainer.step(make_groups())
    weights = weights_of(model)
    state = {name: tensor.clone() for name, tensor in trainer.optimizer_state().items()}
    result = trainer.step(poisoned)
    assert result.metrics["skipped_updates"] == 1
    assert result.version == VERSION + 2
    assert np.isfinite(list(result.metrics.values())).all()
    assert same_bits(weights, weights_of(model))
    assert same_bits(state, trainer.optimizer_state())
    after = trainer.step(make_groups(2))
    assert after.metrics["skipped_updates"] == 0
    assert after.metrics["lr"] == pytest.approx(CONFIG.lr * 2 / 10), "a skipped update does not warm up"


def test_a_skipped_minibatch_does_not_keep_the_others_from_training() -> None:
    groups = make_groups()
    victim = trajectories_of(groups)[6]
    poisoned = replace(groups, completion=lambda t: {"logprobs": t.completion.logprobs - 200 * (t is victim)})
    trainer = make_trainer(tiny_decoder(), config(num_minibatches=4))
    result = trainer.step(poisoned)
    assert result.metrics["skipped_updates"] == 1
    assert int(trainer.optimizer_state()["num_updates"]) == 3


def test_the_learning_rate_rises_over_optimizer_updates_and_stays() -> None:
    trainer = make_trainer(tiny_decoder(), config(warmup_updates=6, num_minibatches=4))
    rates = [trainer.step(make_groups(seed)).metrics["lr"] for seed in range(3)]
    assert rates == pytest.approx([CONFIG.lr * 4 / 6, CONFIG.lr, CONFIG.lr])


def test_gradients_are_scaled_down_to_the_largest_allowed_norm() -> None:
    trainer = make_trainer(tiny_decoder(), config(max_grad_norm=0.01))
    reported = trainer.step(make_groups()).metrics["grad_norm"]
    norm = torch.stack([g.square().sum() for g in first_gradients(trainer).values()]).sum().sqrt()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)
    assert reported > 0.1


def test_weight_decay_shrinks_matrices_and_leaves_norms_and_biases() -> None:
    model = tiny_decoder()
    before = weights_of(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimizer(model, config(weight_decay=0.5)).update(lr=0.1)
    for name, parameter in model.named_parameters():
        kept = 1 - 0.1 * 0.5 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * kept, msg=name)


def test_a_trainer_restored_from_its_state_continues_bit_for_bit() -> None:
    train = config(num_minibatches=2, warmup_updates=7)
    steps = [make_groups(seed) for seed in range(4)]
    model, resumed_model = tiny_decoder(), tiny_decoder(seed=1)
    trainer = make_trainer(model, train)
    for groups in steps[:2]:
        trainer.step(groups)

    resumed_model.load_state_dict(model.state_dict())
    resumed = make_trainer(resumed_model, train, version=trainer.version)
    resumed.load_optimizer_state(safetensors.torch.load(safetensors.torch.save(trainer.optimizer_state())))
    for groups in steps[2:]:
        first, second = trainer.step(groups), resumed.step(groups)
        assert (first.version, first.metrics["loss"]) == (second.version, second.metrics["loss"])
    assert same_bits(weights_of(model), weights_of(resumed_model))
    assert same_bits(trainer.optimizer_state(), resumed.optimizer_state())


def test_a_fresh_state_survives_the_round_trip() -> None:
    trainer = make_trainer(tiny_decoder())
    trainer.load_optimizer_state(make_trainer(tiny_decoder()).optimizer_state())
    assert trainer.step(make_groups()).metrics["skipped_updates"] == 0


@pytest.mark.parametrize("damage", ["unknown", "shape", "missing", "count"])
def test_the_state_of_another_model_or_half_a_state_is_refused(damage: str) -> None:
    trainer = make_trainer(tiny_decoder())
    trainer.step(make_groups())
    state = trainer.optimizer_state()
    name = "exp_avg.blocks.1.down.weight"
    if damage == "unknown":
        state["exp_avg.blocks.7.down.weight"] = state[name]
    elif damage == "shape":
        state[name] = state[name][:-1]
    elif damage == "missing":
        del state[name]
    else:
        del state["num_updates"]
    with pytest.raises(CheckpointError, match="num_updates" if damage == "count" else "down.weight"):
        make_trainer(tiny_decoder()).load_optimizer_state(state)


def test_a_linear_schedule_falls_evenly_to_nothing() -> None:
    config = TrainConfig(lr=0.1, lr_schedule="linear", num_steps=4, warmup_updates=2)
    rates = [learning_rate(config, version=version, num_updates=10) for version in range(5)]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0])
    assert learning_rate(config, version=0, num_updates=0) == pytest.approx(0.05)
    assert learning_rate(config, version=9, num_updates=10) == 0.0


WITHOUT_COMPILER = """
import sys
import torch
from training_batches import SHAPE, make_groups, make_trainer, tiny_decoder
from freerun.model.decoder import Decoder
with torch.device("meta"):
    Decoder(SHAPE)
trainer = make_trainer(tiny_decoder())
trainer.step(make_groups())
trainer.load_optimizer_state({name: tensor.clone() for name, tensor in trainer.optimizer_state().items()})
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_a_trainer_starts_steps_and_restores_without_importing_torchs_compiler() -> None:
    """It takes as long as importing torch, in every worker."""
    places = os.pathsep.join((str(TESTS.parent), str(TESTS / "support")))
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
