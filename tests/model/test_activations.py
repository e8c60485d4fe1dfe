"""Operations that keep only their input have the outputs and gradients of plain ones, bit for bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.model.activations import gated, rms_norm

EPS = 1e-5


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The output, and the gradients of a weighted sum of it."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    grads = torch.autograd.grad(output, leaves, random(*output.shape, dtype=output.dtype, seed=9))
    return output.detach(), *grads


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def plain_gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(33, 64), (17, 3, 16), (1, 576)], ids=str)
def test_the_norm_has_the_bits_of_autograd(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    ours = gradients(lambda x, weight: rms_norm(x, weight, EPS), x, weight)
    theirs = gradients(plain_norm, x, weight)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_activation_has_the_bits_of_autograd(dtype: torch.dtype) -> None:
    gate_up = random(33, 96, dtype=dtype)
    ours, theirs = gradients(gated, gate_up), gradients(plain_gated, gate_up)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_gradients_are_those_of_finite_differences() -> None:
    x, weight = random(5, 6, dtype=torch.float64), random(6, dtype=torch.float64, seed=1)
    x.requires_grad_()
    assert torch.autograd.gradcheck(gated, (x,))
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, EPS), (x, weight.requires_grad_()))


def test_a_frozen_norm_passes_gradients_on() -> None:
    x, weight = random(5, 6).requires_grad_(), random(6, seed=1)
    (ours,) = torch.autograd.grad(rms_norm(x, weight, EPS).sum(), x)
    (theirs,) = torch.autograd.grad(plain_norm(x, weight).sum(), x)
    assert torch.equal(ours, theirs)
