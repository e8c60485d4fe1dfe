"""The trainer on several threads: the same step twice has the same bits.

The batches are those where threads meet: many completions of one prompt, whose gradients are added to one hidden
state, and a completion of more tokens than one thread takes.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from slow_objectives import gradient_of
from training_batches import config, make_groups, make_trainer, same_bits, tiny_decoder, weights_of

from freerun.config.objective import PRESETS
from freerun.trainer.ratio import at_level


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["areal", "gspo", "ppo"])
def test_the_same_step_on_two_threads_has_the_same_bits_every_time(preset: Any) -> None:
    groups = make_groups(num_groups=1, group_size=512)

    def step() -> dict[str, torch.Tensor]:
        model = tiny_decoder()
        make_trainer(model, config(micro_batch_tokens=100_000), PRESETS[preset]).step(groups)
        return weights_of(model)

    first = step()
    assert all(same_bits(first, step()) for _ in range(8))


def test_the_gradient_of_sequence_ratios_on_two_threads_has_the_same_bits_every_time() -> None:
    generator = torch.Generator().manual_seed(0)
    num_tokens = 100_000
    log_ratios, weights = torch.randn(2, num_tokens, generator=generator)

    def gradient() -> torch.Tensor:
        leaf = log_ratios.clone().requires_grad_()
        (at_level(leaf, torch.tensor([num_tokens]), "sequence").exp() * weights).sum().backward()
        return gradient_of(leaf)

    first = gradient()
    assert all(torch.equal(first, gradient()) for _ in range(30))
