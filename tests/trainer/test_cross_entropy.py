"""Logprobs that take the place of the logits: the values and gradients of `F.cross_entropy`."""

import torch
from torch.nn import functional as F

from freerun.trainer.cross_entropy import consume_logits


def test_logprobs_and_gradients_are_those_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, grad = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in ((20, 8), (50, 8), (20,))
    )
    hidden.requires_grad_()
    weight.requires_grad_()
    targets = torch.randint(0, 50, (20,), generator=generator)
    logprobs = consume_logits(F.linear(hidden, weight), targets)
    expected = -F.cross_entropy(F.linear(hidden, weight), targets, reduction="none")
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(
        torch.autograd.grad(logprobs, (hidden, weight), grad),
        torch.autograd.grad(expected, (hidden, weight), grad),
    )


def test_a_probability_that_underflows_has_a_finite_logprob() -> None:
    logits = torch.tensor([[0.0, 500.0, -500.0]])
    assert consume_logits(logits, torch.tensor([2])).tolist() == [-1000.0]


def test_nothing_to_predict_has_a_gradient_of_zero() -> None:
    hidden = torch.ones(0, 4, requires_grad=True)
    weight = torch.ones(6, 4, requires_grad=True)
    consume_logits(F.linear(hidden, weight), torch.empty(0, dtype=torch.int64)).sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
