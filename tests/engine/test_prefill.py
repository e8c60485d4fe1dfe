"""Attention of prefill chunks: that of the whole sequence, with the same bits however it is cut."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from freerun.engine.prefill import PrefillAttention, PrefillChunk, TiledPrefillAttention

NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE = 6, 2, 8
SLOT_TOKENS = 150
"""Not a whole number of tiles."""
SLOT = 1

lengths = st.integers(1, SLOT_TOKENS)


def inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q_THD = torch.randn(length, NUM_HEADS, HEAD_SIZE, generator=generator)
    k_TKD, v_TKD = torch.randn(2, length, NUM_KV_HEADS, HEAD_SIZE, generator=generator)
    return q_THD, k_TKD, v_TKD


def attend(
    kind: type[PrefillAttention | TiledPrefillAttention], length: int, cuts: set[int], left: float
) -> Tensor:
    """Chunk after chunk, in a cache whose slots hold `left` from what was there before."""
    cache_2SKLD = torch.full((2, 3, NUM_KV_HEADS, SLOT_TOKENS, HEAD_SIZE), left)
    bounds = sorted({0, length, *(cut for cut in cuts if cut < length)})
    parts = [
        kind(cache_2SKLD, PrefillChunk(SLOT, first, last))(cache_2SKLD, *(x[first:last] for x in inputs(length)))
        for first, last in pairwise(bounds)
    ]
    _, k_TKD, v_TKD = inputs(length)
    assert torch.equal(cache_2SKLD[0, SLOT, :, :length].transpose(0, 1), k_TKD)
    assert torch.equal(cache_2SKLD[1, SLOT, :, :length].transpose(0, 1), v_TKD)
    torch.testing.assert_close(
        cache_2SKLD[:, [0, 2]], torch.full_like(cache_2SKLD[:, [0, 2]], left), equal_nan=True, rtol=0, atol=0
    )
    return torch.cat(parts)


@settings(max_examples=40)
@given(length=lengths, cuts=st.sets(lengths, max_size=5))
def test_chunks_attend_as_the_whole_sequence_does(length: int, cuts: set[int]) -> None:
    q, k, v = (x.transpose(0, 1)[None] for x in inputs(length))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    for kind in (PrefillAttention, TiledPrefillAttention):
        torch.testing.assert_close(attend(kind, length, cuts, left=1e3), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=40)
@given(length=lengths, more=st.integers(0, SLOT_TOKENS), cuts=st.sets(lengths, max_size=5))
def test_in_tiles_a_row_has_the_same_bits_in_any_chunks_and_before_any_end(
    length: int, more: int, cuts: set[int]
) -> None:
    whole = attend(TiledPrefillAttention, length, set(), left=0.0)
    assert torch.equal(attend(TiledPrefillAttention, length, cuts, left=torch.nan), whole)
    longer = tuple(F.pad(x, (0, 0, 0, 0, 0, min(more, SLOT_TOKENS - length)), value=2.0) for x in inputs(length))
    cache_2SKLD = torch.zeros(2, 3, NUM_KV_HEADS, SLOT_TOKENS, HEAD_SIZE)
    attend_longer = TiledPrefillAttention(cache_2SKLD, PrefillChunk(SLOT, 0, len(longer[0])))
    assert torch.equal(attend_longer(cache_2SKLD, *longer)[:length], whole)
