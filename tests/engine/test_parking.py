"""Parked caches: bits go out and come back, each session has its own, and the oldest makes room."""

import pytest
import torch
from tiny_models import TINY

from freerun.engine.cache import KVCache
from freerun.engine.parking import ParkedCaches

NUM_SLOTS, SLOT_TOKENS = 4, 40


def filled_cache() -> KVCache:
    cache = KVCache(
        TINY, num_slots=NUM_SLOTS, slot_tokens=SLOT_TOKENS, device=torch.device("cpu"), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(0)
    for layer_2SKLD in cache.layers_2SKLD:
        layer_2SKLD[:] = torch.randn(layer_2SKLD.shape, generator=generator)
    return cache


def tokens(*parts: tuple[int, int]) -> list[int]:
    """A number of tokens for each of several kinds."""
    return [token for token, count in parts for _ in range(count)]


def num_adopted(parked: ParkedCaches, session: int, token_ids: list[int], *, slot: int) -> int:
    adopted = parked.adopt(session, token_ids, slot=slot)
    return adopted.num_tokens if adopted is not None else 0


def test_a_turn_gets_the_bits_that_were_parked_and_no_position_more() -> None:
    cache = filled_cache()
    parked = ParkedCaches(cache, max_tokens=100)
    before = [layer.clone() for layer in cache.layers_2SKLD]
    parked.park(7, 1, tokens((3, 20)), slot=1)
    cache.layers_2SKLD[0][:, 1] = 0  # the slot is given away
    assert num_adopted(parked, 7, tokens((3, 20), (5, 10)), slot=2) == 20
    for layer_2SKLD, was_2SKLD in zip(cache.layers_2SKLD, before, strict=True):
        assert torch.equal(layer_2SKLD[:, 2, :, :20], was_2SKLD[:, 1, :, :20])
        assert torch.equal(layer_2SKLD[:, 2, :, 20:], was_2SKLD[:, 2, :, 20:])
    assert (parked.num_tokens, parked.num_adopted_tokens) == (20, 20)


def test_the_last_token_is_left_to_be_computed() -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=100)
    parked.park(7, 1, tokens((3, 20)), slot=1)
    assert num_adopted(parked, 7, tokens((3, 20)), slot=2) == 19
    assert num_adopted(parked, 7, tokens((3, 5)), slot=2) == 4
    assert num_adopted(parked, 7, tokens((3, 1)), slot=2) == 0


def test_a_branch_adopts_what_agrees_longest() -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=100)
    parked.park(7, 1, tokens((3, 10), (4, 5)), slot=0)
    parked.park(7, 2, tokens((3, 10), (5, 8)), slot=1)
    assert parked.num_tokens == 33
    assert num_adopted(parked, 7, tokens((3, 10), (5, 4), (6, 3)), slot=2) == 14
    assert num_adopted(parked, 7, tokens((3, 10), (4, 9)), slot=2) == 15
    assert num_adopted(parked, 7, tokens((3, 2), (8, 9)), slot=2) == 2
    assert num_adopted(parked, 7, tokens((8, 9)), slot=2) == 0


def test_a_longer_cache_replaces_the_one_that_it_continues_and_leaves_branches() -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=100)
    parked.park(7, 1, tokens((3, 10)), slot=0)
    parked.park(7, 2, tokens((3, 5), (4, 5)), slot=0)
    parked.park(7, 3, tokens((3, 10), (6, 10)), slot=1)
    assert parked.num_tokens == 30
    assert num_adopted(parked, 7, tokens((3, 5), (4, 9)), slot=2) == 10


def test_no_session_adopts_from_another() -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=100)
    parked.park(7, 1, tokens((3, 20)), slot=1)
    assert num_adopted(parked, 8, tokens((3, 30)), slot=2) == 0


def test_the_session_that_parked_longest_ago_makes_room() -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=50)
    for session in (1, 2):
        parked.park(session, session, tokens((session, 20)), slot=0)
    parked.park(1, 3, tokens((1, 25)), slot=0)  # its turn: 2 is the oldest now
    parked.park(3, 4, tokens((3, 20)), slot=0)
    assert parked.num_tokens == 45
    assert [num_adopted(parked, session, tokens((session, 30)), slot=1) for session in (1, 2, 3)] == [25, 0, 20]


@pytest.mark.parametrize("max_tokens", [0, 19])
def test_what_exceeds_the_budget_is_not_parked_and_displaces_nothing(max_tokens: int) -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=max_tokens)
    parked.park(1, 1, tokens((1, 12)), slot=0)
    before = parked.num_tokens
    parked.park(2, 2, tokens((2, 20)), slot=0)
    assert parked.num_tokens == before == (12 if max_tokens else 0)
    assert num_adopted(parked, 2, tokens((2, 30)), slot=1) == 0


def test_ended_sessions_aborted_requests_and_loads_leave_nothing() -> None:
    parked = ParkedCaches(filled_cache(), max_tokens=100)
    parked.park(1, 1, tokens((1, 12)), slot=0)
    parked.park(2, 2, tokens((2, 11)), slot=0)
    parked.park(2, 3, tokens((3, 10)), slot=0)
    parked.end_session(1)
    parked.end_session(99)
    assert parked.num_tokens == 21
    parked.drop_request(2, 2)
    parked.drop_request(1, 1)
    assert parked.num_tokens == 10
    parked.clear()
    assert parked.num_tokens == 0
    assert num_adopted(parked, 2, tokens((3, 30)), slot=1) == 0


def test_what_a_turn_adopted_is_not_copied_again_unless_it_adopted_only_a_part() -> None:
    cache = filled_cache()
    parked = ParkedCaches(cache, max_tokens=100)
    parked.park(7, 1, tokens((3, 10)), slot=0)
    adopted = parked.adopt(7, tokens((3, 12)), slot=1)
    for layer_2SKLD in cache.layers_2SKLD:
        layer_2SKLD[:, 1, :, :10] += 1  # no turn does that; it shows from where the positions come
    parked.park(7, 2, tokens((3, 18)), slot=1, adopted=adopted)
    assert num_adopted(parked, 7, tokens((3, 20)), slot=2) == 18
    for layer_2SKLD in cache.layers_2SKLD:
        assert torch.equal(layer_2SKLD[:, 2, :, :10], layer_2SKLD[:, 0, :, :10])
        assert torch.equal(layer_2SKLD[:, 2, :, 10:18], layer_2SKLD[:, 1, :, 10:18])
    part = parked.adopt(7, tokens((3, 15)), slot=2)
    for stale in (part, adopted):  # only its first tokens, and one that is not parked any more
        parked.park(7, 3, tokens((3, 19)), slot=1, adopted=stale)
        assert num_adopted(parked, 7, tokens((3, 20)), slot=3) == 19
        for layer_2SKLD in cache.layers_2SKLD:
            assert torch.equal(layer_2SKLD[:, 3, :, :19], layer_2SKLD[:, 1, :, :19])
    assert parked.num_tokens == 19
