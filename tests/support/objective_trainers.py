"""Trainers with everything that an objective needs, and the comparison of their gradients."""

from typing import Any

import torch
from torch import Tensor, nn
from training_batches import make_trainer, tiny_decoder

from freerun.config.objective import ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.model.decoder import Decoder
from freerun.trainer.trainer import PolicyTrainer


def some_critic() -> nn.Linear:
    critic = nn.Linear(tiny_decoder().config.hidden_size, 1)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return critic


def some_reference(distance: float = 0.05) -> Decoder:
    """A policy near the one that is trained."""
    model, other = tiny_decoder(), tiny_decoder(seed=1)
    with torch.no_grad():
        for parameter, distant in zip(model.parameters(), other.parameters(), strict=True):
            parameter.add_(distance * distant)
    return model.requires_grad_(False)


def packed_trainer(
    model: Decoder, train: TrainConfig, objective: ObjectiveConfig, **options: Any
) -> PolicyTrainer:
    trainer = make_trainer(model, train, objective, **options)
    if objective.has_critic:
        critic = {f"critic.{name}": p.detach() for name, p in some_critic().named_parameters()}
        trainer.load_optimizer_state({"num_updates": torch.tensor(0), **critic})
    if objective.kl_coefficient > 0:
        trainer.reference = some_reference()
    return trainer


def as_single(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.float() for name, tensor in tensors.items()}


def assert_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Equal up to single precision, measured against the largest entry of each tensor."""
    assert ours.keys() == theirs.keys()
    for name, expected in as_single(theirs).items():
        scale = float(expected.abs().max())
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-5 * max(scale, 1e-3), msg=name)
