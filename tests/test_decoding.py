"""Decoding attends as each sequence alone would, and the cache takes no memory before it is used."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import TINY
from torch.nn import functional as F

from freerun.engine.cache import KVCache
from freerun.engine.decoding import DecodeAttention, _choose_alone

NUM_SLOTS, NUM_KV_HEADS, SLOT_TOKENS, HEAD_SIZE = 12, 2, 900, 8


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.dictionaries(st.integers(0, NUM_SLOTS - 1), st.integers(1, SLOT_TOKENS), min_size=1),
    num_queries=st.integers(1, 3),
)
def test_each_row_attends_to_its_own_sequence_and_no_further(lengths: dict[int, int], num_queries: int) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    cache = torch.randn(2, NUM_SLOTS, NUM_KV_HEADS, SLOT_TOKENS, HEAD_SIZE, generator=generator)
    slots = sorted(lengths)
    q = torch.randn(len(slots), NUM_KV_HEADS * num_queries, HEAD_SIZE, generator=generator)
    k, v = torch.randn(2, len(slots), NUM_KV_HEADS, HEAD_SIZE, generator=generator)
    attend = DecodeAttention(cache, slots, [lengths[slot] - 1 for slot in slots])
    before = cache.clone()
    attended = attend(cache, q, k, v)
    for row, slot in enumerate(slots):
        before[:, slot, :, lengths[slot] - 1] = torch.stack((k[row], v[row]))
        keys, values = before[:, slot, :, : lengths[slot]]
        expected = F.scaled_dot_product_attention(q[row].view(NUM_KV_HEADS, num_queries, HEAD_SIZE), keys, values)
        torch.testing.assert_close(attended[row], expected.view(-1, HEAD_SIZE), atol=1e-5, rtol=1e-5)
    assert torch.equal(cache, before), "only the new keys and values are written"


@pytest.mark.parametrize(
    ("lengths", "num_alone"),
    [
        ([50] * 32, 0),
        ([50] * 31 + [1000], 1),
        ([1000] + [50] * 30 + [900], 2),
        (list(range(50, 82)), 0),
    ],
)
def test_only_sequences_much_longer_than_the_others_are_attended_alone(lengths: list[int], num_alone: int) -> None:
    alone = _choose_alone(np.array(lengths), len(lengths))
    assert len(alone) == num_alone
    assert all(lengths[row] >= 900 for row in alone)


def test_a_cache_takes_memory_only_for_the_positions_in_use() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    before = resident_bytes()
    cache = KVCache(TINY, num_slots=1000, slot_tokens=5000, device=torch.device("cpu"), dtype=torch.float32)
    reserved = sum(layer.numel() * 4 for layer in cache.layers_2SKLD)
    assert reserved > 10**9
    for slot in range(1, 1000):
        cache.copy(source=0, target=slot, num_tokens=10)
    assert not cache.layers_2SKLD[0][:, 700, :, :10].any()
    assert resident_bytes() - before < reserved / 10
