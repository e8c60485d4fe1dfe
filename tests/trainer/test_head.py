"""Logprobs from hidden states in chunks: the values and gradients of whole logits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.trainer.head import _chunks, target_logprobs

NUM_TOKENS, WIDTH, VOCABULARY = 20, 8, 50
LIMITS = {"one chunk": 2**20, "three chunks": 8 * VOCABULARY, "a token at a time": 1}


def arguments(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NUM_TOKENS, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(0, VOCABULARY, (NUM_TOKENS,), generator=generator)


def whole_outputs(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_probabilities = torch.log_softmax(F.linear(hidden, weight), dim=-1)
    entropies = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
    return log_probabilities.gather(1, targets[:, None]).squeeze(1), entropies


@pytest.mark.parametrize("max_logits", LIMITS.values(), ids=LIMITS)
def test_outputs_and_gradients_are_those_of_whole_logits(max_logits: int) -> None:
    hidden, weight, targets = arguments()
    logprobs, entropies = target_logprobs(hidden, weight, targets, with_entropies=True, max_logits=max_logits)
    assert entropies is not None
    expected = whole_outputs(hidden, weight, targets)
    torch.testing.assert_close((logprobs, entropies), expected)
    grads = torch.randn(2, NUM_TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    torch.testing.assert_close(
        torch.autograd.grad((logprobs, entropies), (hidden, weight), grads),
        torch.autograd.grad(expected, (hidden, weight), grads),
    )


@pytest.mark.parametrize("with_entropies", [False, True])
def test_gradients_are_those_of_finite_differences(with_entropies: bool) -> None:
    hidden, weight, targets = arguments()

    def outputs(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        found = target_logprobs(hidden, weight, targets, with_entropies=with_entropies, max_logits=8 * VOCABULARY)
        return tuple(each for each in found if each is not None)

    assert torch.autograd.gradcheck(outputs, (hidden, weight))


def test_one_chunk_has_the_bits_of_a_linear_layer_and_several_are_close() -> None:
    hidden, weight, targets = arguments(torch.float32)
    plain = F.linear(hidden, weight)
    probabilities = torch.softmax(plain.detach(), dim=1)
    grad = torch.linspace(-1, 1, NUM_TOKENS)
    grad_logits = probabilities.mul(-grad[:, None]).scatter_add(1, targets[:, None], grad[:, None])
    expected = torch.autograd.grad(plain, (hidden, weight), grad_logits)
    for max_logits in LIMITS.values():
        logprobs, _ = target_logprobs(hidden, weight, targets, max_logits=max_logits)
        grads = torch.autograd.grad(logprobs, (hidden, weight), grad)
        torch.testing.assert_close(grads, expected)
        if max_logits == LIMITS["one chunk"]:
            assert all(torch.equal(one, other) for one, other in zip(grads, expected, strict=True))


def test_a_frozen_weight_gets_no_gradient_and_bfloat16_a_float32_one() -> None:
    hidden, weight, targets = arguments(torch.float32)
    logprobs, _ = target_logprobs(hidden, weight.detach(), targets, max_logits=8 * VOCABULARY)
    (alone,) = torch.autograd.grad(logprobs.sum(), hidden)
    logprobs, _ = target_logprobs(hidden, weight, targets, dtype=torch.bfloat16, max_logits=8 * VOCABULARY)
    assert logprobs.dtype == torch.float32
    grads = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    assert {grad.dtype for grad in grads} == {torch.float32}
    torch.testing.assert_close(grads[0], alone, atol=0.1, rtol=0.1)


def test_chunks_cover_all_tokens_and_the_last_is_the_largest() -> None:
    assert _chunks(10, 4) == [slice(0, 2), slice(2, 6), slice(6, 10)]
    assert _chunks(8, 4) == [slice(0, 4), slice(4, 8)]
    assert _chunks(3, 4) == [slice(0, 3)]


def test_a_probability_that_underflows_has_a_finite_logprob_and_entropy() -> None:
    hidden, weight = torch.ones(1, 1), torch.tensor([[0.0], [500.0], [-500.0]])
    logprobs, entropies = target_logprobs(hidden, weight, torch.tensor([2]), with_entropies=True)
    assert entropies is not None
    assert (logprobs.tolist(), entropies.tolist()) == ([-1000.0], [0.0])


def test_nothing_to_predict_has_a_gradient_of_zero() -> None:
    hidden = torch.ones(0, 4, requires_grad=True)
    weight = torch.ones(6, 4, requires_grad=True)
    logprobs, _ = target_logprobs(hidden, weight, torch.empty(0, dtype=torch.int64))
    logprobs.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
