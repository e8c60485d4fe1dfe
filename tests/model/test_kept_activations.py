"""What a forward pass keeps for its backward pass, and that computing the rest again changes no bit."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tiny_models import TINY, random_model
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import freerun.model.decoder
from freerun.config.lora import LoraConfig
from freerun.model.attention import Family, PackedCausalAttention, packed_positions
from freerun.model.decoder import Decoder
from freerun.model.lora import add_adapter
from freerun.model.unkept import with_unkept_inputs

FAMILIES = [Family(5, (4, 7, 0)), Family(3), Family(2, (1,))]
KINDS: dict[str, Callable[[], Decoder]] = {
    "plain": lambda: random_model(0),
    "queries and keys with norms": lambda: random_model(0, replace(TINY, has_qk_norm=True)),
    "adapter": lambda: adapted_model(),
}


def adapted_model() -> Decoder:
    model = random_model(0)
    add_adapter(model, LoraConfig(rank=2), seed=1)
    return model


def feed_plainly(
    function: Callable[..., Tensor], compute: Callable[..., Sequence[Tensor]], *sources: Tensor
) -> Tensor:
    return function(*compute(*sources))


def hidden_states(model: Decoder) -> Tensor:
    positions = packed_positions(FAMILIES)
    tokens = torch.arange(len(positions)) % model.config.vocab_size
    hidden: Tensor = model(tokens, positions, PackedCausalAttention(FAMILIES))
    return hidden


def gradients(model: Decoder, dtype: torch.dtype) -> dict[str, Tensor]:
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        hidden = hidden_states(model)
    hidden.float().square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert len(ours) > 4
    for name, grad in ours.items():
        assert torch.equal(grad, theirs[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_inputs_that_are_computed_again_leave_all_gradients_as_they_are(
    make: Callable[[], Decoder], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = gradients(make(), dtype)
    monkeypatch.setattr(freerun.model.decoder, "with_unkept_inputs", feed_plainly)
    assert_same_bits(ours, gradients(make(), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_blocks_that_are_computed_again_leave_all_gradients_as_they_are(
    make: Callable[[], Decoder], dtype: torch.dtype
) -> None:
    recomputing = make()
    recomputing.recompute_blocks(True)
    assert_same_bits(gradients(recomputing, dtype), gradients(make(), dtype))


def num_kept_bytes(model: Decoder) -> int:
    """What is still allocated when the forward pass is over."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        hidden = hidden_states(model)
    assert hidden.requires_grad
    return sum(event.self_cpu_memory_usage for event in profiler.key_averages())


def test_a_forward_pass_keeps_half_and_with_recomputed_blocks_little_more_than_their_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model(0)
    hidden_states(model)  # makes the table of rotations
    kept = num_kept_bytes(model)
    model.recompute_blocks(True)
    kept_inputs = num_kept_bytes(model)
    model.recompute_blocks(False)
    monkeypatch.setattr(freerun.model.decoder, "with_unkept_inputs", feed_plainly)
    kept_plainly = num_kept_bytes(model)
    hidden_bytes = sum(family.num_tokens for family in FAMILIES) * TINY.hidden_size * 4
    assert (TINY.num_layers + 1) * hidden_bytes <= kept_inputs < (TINY.num_layers + 5) * hidden_bytes
    assert kept_inputs < kept < 0.7 * kept_plainly


def test_a_layer_whose_input_is_computed_again_does_not_keep_it() -> None:
    x, weight = torch.randn(50, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    alive: list[int] = []

    def compute(x: Tensor) -> tuple[Tensor]:
        product = x * 2
        alive.append(product.untyped_storage().data_ptr())
        return (product,)

    output = with_unkept_inputs(lambda product: F.linear(product, weight), compute, x)
    assert output.grad_fn is not None
    (grad,) = torch.autograd.grad(output.sum(), weight)
    assert len(alive) == 2, "computed forward and backward, once each"
    torch.testing.assert_close(grad, (x.detach() * 2).sum(0).expand(4, 8))
