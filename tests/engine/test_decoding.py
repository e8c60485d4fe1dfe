"""Decoding attends as each sequence alone would, and the cache takes no memory before it is used."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import TINY
from torch.nn import functional as F

from freerun.engine import decode_kernel
from freerun.engine.cache import CachedAttention, KVCache
from freerun.engine.decode_kernel import CompiledDecodeAttention
from freerun.engine.decoding import DecodeAttention, _choose_alone

NUM_SLOTS, NUM_KV_HEADS, SLOT_TOKENS, HEAD_SIZE = 12, 2, 900, 8


def compiled(cache: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> CompiledDecodeAttention:
    """Nobody lends anything."""
    return CompiledDecodeAttention(cache, slots, positions, [(slot, 0) for slot in slots])


Attend = Callable[[torch.Tensor, list[int], list[int]], DecodeAttention | CompiledDecodeAttention]


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However little there is to read, each of so many threads has a share."""
    monkeypatch.setattr(decode_kernel, "MIN_SHARE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("make", [DecodeAttention, compiled])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lengths=st.dictionaries(st.integers(0, NUM_SLOTS - 1), st.integers(1, SLOT_TOKENS), min_size=1),
    num_queries=st.integers(1, 3),
)
def test_each_row_attends_to_its_own_sequence_and_no_further(
    make: Attend, lengths: dict[int, int], num_queries: int
) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    cache = torch.randn(2, NUM_SLOTS, NUM_KV_HEADS, SLOT_TOKENS, HEAD_SIZE, generator=generator)
    slots = sorted(lengths)
    q = torch.randn(len(slots), NUM_KV_HEADS * num_queries, HEAD_SIZE, generator=generator)
    k, v = torch.randn(2, len(slots), NUM_KV_HEADS, HEAD_SIZE, generator=generator)
    attend = make(cache, slots, [lengths[slot] - 1 for slot in slots])
    before = cache.clone()
    attended = attend(cache, q, k, v)
    for row, slot in enumerate(slots):
        before[:, slot, :, lengths[slot] - 1] = torch.stack((k[row], v[row]))
        keys, values = before[:, slot, :, : lengths[slot]]
        expected = F.scaled_dot_product_attention(q[row].view(NUM_KV_HEADS, num_queries, HEAD_SIZE), keys, values)
        torch.testing.assert_close(attended[row], expected.view(-1, HEAD_SIZE), atol=1e-5, rtol=1e-5)
    assert torch.equal(cache, before), "only the new keys and values are written"


@settings(max_examples=40)
@given(
    head_size=st.integers(1, 80),
    num_queries=st.integers(1, 5),
    length=st.integers(1, 70),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_the_compiled_attention_is_as_exact_as_float32_for_heads_of_any_size_and_scores_far_apart(
    head_size: int, num_queries: int, length: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(length)
    cache = torch.randn(2, 1, 2, length, head_size, generator=generator, dtype=torch.float32)
    # As in the decoder: queries and keys lie together, values elsewhere, and none of them is contiguous.
    qk = torch.randn(1, 2 * num_queries + 2, head_size, generator=generator) * size
    q, k = qk.split([2 * num_queries, 2], dim=1)
    v = torch.randn(1, 4, head_size, generator=generator)[:, 2:]
    attended = compiled(cache, [0], [length - 1])(cache, q, k, v)
    assert torch.equal(cache[:, 0, :, -1], torch.stack((k[0], v[0])))
    keys, values = cache[:, 0].double()
    queries = q.view(2, num_queries, head_size).double()
    expected = F.scaled_dot_product_attention(queries, keys, values)
    # What float32 rounds off a score of this size changes the weights of values by as much.
    rounding = 2.0**-23 * float((queries.abs() @ keys.abs().mT).max()) / math.sqrt(head_size)
    tolerance = 2e-5 + 2 * rounding * float(values.abs().max())
    torch.testing.assert_close(attended[0], expected.view(-1, head_size).float(), atol=tolerance, rtol=2e-5)


@pytest.mark.usefixtures("threads")
def test_what_a_row_computes_does_not_depend_on_who_shares_the_batch() -> None:
    cache = torch.randn(2, NUM_SLOTS, NUM_KV_HEADS, 300, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
    q = torch.randn(NUM_SLOTS, NUM_KV_HEADS * 3, HEAD_SIZE, generator=torch.Generator().manual_seed(1))
    k, v = torch.randn(2, NUM_SLOTS, NUM_KV_HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(2))
    positions = [17 * slot + 3 for slot in range(NUM_SLOTS)]
    together = compiled(cache, range(NUM_SLOTS), positions)(cache, q, k, v)
    for row in range(NUM_SLOTS):
        attend = compiled(cache, [row], [positions[row]])
        assert torch.equal(together[row], attend(cache, q[row, None], k[row, None], v[row, None])[0])


@pytest.mark.usefixtures("threads")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    families=st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.integers(1, 30), min_size=1, max_size=5)), min_size=1, max_size=4
    ),
    seed=st.integers(0, 100),
)
def test_a_prompt_is_read_where_it_is_lent_and_whoever_lends_it_makes_no_difference(
    families: list[tuple[int, list[int]]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [(family, length) for family, (_, lengths) in enumerate(families) for length in lengths]
    rows = [rows[row] for row in torch.randperm(len(rows), generator=generator)]  # siblings lie anywhere
    slots = range(len(rows))
    cache = torch.randn(2, len(rows), NUM_KV_HEADS, 80, HEAD_SIZE, generator=generator)
    lenders: dict[int, int] = {}
    prompts = []
    for slot, (family, _) in enumerate(rows):
        lender, num_lent = lenders.setdefault(family, slot), families[family][0]
        cache[:, slot, :, :num_lent] = cache[:, lender, :, :num_lent]
        prompts.append((lender, num_lent))
    positions = [families[family][0] + length - 1 for family, length in rows]
    q = torch.randn(len(rows), NUM_KV_HEADS * 3, HEAD_SIZE, generator=generator)
    k, v = torch.randn(2, len(rows), NUM_KV_HEADS, HEAD_SIZE, generator=generator)
    own_prompts = [(slot, num_lent) for slot, (_, num_lent) in zip(slots, prompts, strict=True)]
    expected = CompiledDecodeAttention(cache, slots, positions, own_prompts)(cache, q, k, v)
    plain = DecodeAttention(cache, slots, positions)(cache, q, k, v)
    torch.testing.assert_close(expected, plain, atol=1e-5, rtol=1e-5)
    for slot, (lender, num_lent) in zip(slots, prompts, strict=True):
        if slot != lender:
            cache[:, slot, :, :num_lent] = math.nan
    assert torch.equal(CompiledDecodeAttention(cache, slots, positions, prompts)(cache, q, k, v), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("where", ["query", "new key", "cached key", "value"])
def test_what_is_not_finite_is_never_attended_away(bad: float, where: str) -> None:
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(2, 2, 1, 9, 8, generator=generator)
    q, k, v = torch.randn(3, 2, 1, 8, generator=generator)
    q[:, :, 3], k[:, :, 3], cache[0, :, :, :, 3] = 8, 8, 8  # the largest number times these overflows
    places = {"query": q[0, 0], "new key": k[0, 0], "cached key": cache[0, 0, 0, 4], "value": cache[1, 0, 0, 4]}
    places[where][3] = bad
    attended = compiled(cache, [0, 1], [8, 8])(cache, q, k, v)
    if where == "value" and bad == 3e38:  # a large value is a number like others
        assert attended[0].isfinite().all()
    else:
        assert not attended[0].isfinite().all()
    assert attended[1].isfinite().all(), "the other row has nothing to do with it"


def test_float32_on_a_cpu_is_attended_by_what_was_compiled_and_bfloat16_is_not() -> None:
    def kind(dtype: torch.dtype) -> type:
        cache = KVCache(TINY, num_slots=2, slot_tokens=8, device=torch.device("cpu"), dtype=dtype)
        return type(CachedAttention(cache, [0, 1], [3, 5], [(0, 2), (0, 2)], [])._decode)

    assert kind(torch.float32) is CompiledDecodeAttention
    assert kind(torch.bfloat16) is DecodeAttention


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
