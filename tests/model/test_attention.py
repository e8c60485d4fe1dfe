"""Packed attention on a CPU: the same values and gradients as one masked call per trunk and branch."""

import pytest
import torch
from torch import Tensor

from freerun.model.attention import Family, PackedCausalAttention

torch.set_num_threads(1)

FAMILIES = {
    "one token": [Family(1)],
    "sequences without branches": [Family(5), Family(17)],
    "a branch that is empty": [Family(4, (3, 0, 1))],
    "only empty branches": [Family(4, (0, 0)), Family(2, (1,))],
    "families and a sequence": [Family(20, (5, 40, 1)), Family(7), Family(33, (9, 9))],
    "more keys than the kernel takes at once": [Family(700, (600, 30))],
}


def random_inputs(families: list[Family], num_kv_heads: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries of six heads, keys and values, and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    num_tokens = sum(family.num_tokens for family in families)
    heads = (6, num_kv_heads, num_kv_heads, 6)
    return [torch.randn(num_tokens, h, 16, dtype=dtype, generator=generator).requires_grad_() for h in heads]


@pytest.mark.parametrize("num_kv_heads", [6, 2])
@pytest.mark.parametrize("families", FAMILIES.values(), ids=FAMILIES.keys())
def test_values_and_gradients_are_those_of_masked_attention(families: list[Family], num_kv_heads: int) -> None:
    *inputs, grad = random_inputs(families, num_kv_heads)
    attention = PackedCausalAttention(families)
    attended, expected = attention(0, *inputs), attention.attend_with_masks(*inputs)
    torch.testing.assert_close(attended, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        torch.autograd.grad(attended, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        rtol=1e-10,
        atol=1e-10,
    )


def test_views_of_one_projection_are_read_in_place() -> None:
    families = [Family(3, (2, 4))]
    qkv = torch.randn(9, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = qkv.split([3, 1, 1], dim=1)
    attention = PackedCausalAttention(families)
    attended = attention(0, q, k, v)
    torch.testing.assert_close(attended, attention.attend_with_masks(q, k, v), rtol=1e-10, atol=1e-10)


def test_bfloat16_merges_its_parts_in_float32() -> None:
    families = [Family(30, (20, 10))]
    *inputs, _ = random_inputs(families, 2, torch.bfloat16)
    exact = PackedCausalAttention(families)(0, *(x.double() for x in inputs))
    attended = PackedCausalAttention(families)(0, *inputs)
    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(attended.double(), exact, rtol=2e-2, atol=2e-2)
