"""Micro-batches by Algorithm 1 and minibatches by dealing: nothing lost, twice or over capacity."""

from hypothesis import given
from hypothesis import strategies as st

from freerun.trainer.packing import cut_families, deal_minibatches, pack_micro_batches

LENGTHS = st.lists(st.integers(1, 60), max_size=40)
CAPACITY = st.integers(1, 80)
K_MIN = st.integers(1, 6)


def all_indices(parts: list[list[int]]) -> list[int]:
    return sorted(index for part in parts for index in part)


@given(LENGTHS, CAPACITY, K_MIN)
def test_every_sequence_is_in_exactly_one_micro_batch(lengths: list[int], capacity: int, k_min: int) -> None:
    packs = pack_micro_batches(lengths, capacity=capacity, k_min=k_min)
    assert all_indices(packs) == list(range(len(lengths)))
    assert all(packs)


@given(LENGTHS, CAPACITY, K_MIN)
def test_only_a_lone_sequence_may_exceed_the_capacity(lengths: list[int], capacity: int, k_min: int) -> None:
    for pack in pack_micro_batches(lengths, capacity=capacity, k_min=k_min):
        assert sum(lengths[i] for i in pack) <= capacity or len(pack) == 1


@given(LENGTHS, CAPACITY, K_MIN)
def test_there_are_at_least_k_min_micro_batches_if_there_are_as_many_sequences(
    lengths: list[int], capacity: int, k_min: int
) -> None:
    packs = pack_micro_batches(lengths, capacity=capacity, k_min=k_min)
    assert len(packs) >= min(k_min, len(lengths))


@given(LENGTHS, CAPACITY, K_MIN)
def test_packing_the_same_lengths_gives_the_same_micro_batches(
    lengths: list[int], capacity: int, k_min: int
) -> None:
    first = pack_micro_batches(lengths, capacity=capacity, k_min=k_min)
    assert first == pack_micro_batches(list(lengths), capacity=capacity, k_min=k_min)


@given(LENGTHS, CAPACITY)
def test_no_two_micro_batches_are_so_empty_that_one_would_do(lengths: list[int], capacity: int) -> None:
    # A sequence opens a micro-batch only when it fits nowhere, so any two exceed the capacity together.
    tokens = sorted(sum(lengths[i] for i in p) for p in pack_micro_batches(lengths, capacity=capacity))
    assert len(tokens) < 2 or tokens[0] + tokens[1] > capacity


def test_algorithm_1_worked_by_hand() -> None:
    # Longest first: 9 opens; 6 does not fit in 12 - 9 and opens; 5 fits beside 6; 3 fits beside 9;
    # 1 finds both with two sequences but fits only beside 6 + 5.
    assert pack_micro_batches([3, 9, 1, 6, 5], capacity=12) == [[1, 0], [3, 4, 2]]


def test_a_sequence_joins_the_micro_batch_with_the_fewest_sequences() -> None:
    # 50 and 10 open (k_min); 9 joins the first of two equals, whatever its tokens; then 8 the other.
    assert pack_micro_batches([50, 10, 9, 8], capacity=100, k_min=2) == [[0, 2], [1, 3]]


def test_an_over_long_sequence_stands_alone() -> None:
    assert pack_micro_batches([2, 50, 3], capacity=10) == [[1], [2, 0]]


@given(LENGTHS, st.integers(1, 8))
def test_every_trajectory_is_dealt_once_and_counts_differ_by_at_most_one(
    lengths: list[int], num_minibatches: int
) -> None:
    hands = deal_minibatches(lengths, num_minibatches)
    assert all_indices(hands) == list(range(len(lengths)))
    assert len(hands) == min(num_minibatches, len(lengths))
    counts = [len(hand) for hand in hands]
    assert not counts or max(counts) - min(counts) <= 1


@given(LENGTHS, st.integers(1, 8))
def test_dealing_balances_tokens_to_within_one_trajectory(lengths: list[int], num_minibatches: int) -> None:
    tokens = [sum(lengths[i] for i in hand) for hand in deal_minibatches(lengths, num_minibatches)]
    assert not tokens or max(tokens) - min(tokens) <= max(lengths)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.data())
def test_every_minibatch_gets_an_equal_share_of_every_group(
    num_groups: int, num_minibatches: int, share: int, data: st.DataObject
) -> None:
    group_size = num_minibatches * share
    size = num_groups * group_size
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=size, max_size=size))
    for hand in deal_minibatches(lengths, num_minibatches):
        groups = [index // group_size for index in hand]
        assert [groups.count(g) for g in range(num_groups)] == [share] * num_groups
        assert groups == sorted(groups), "the oldest come first"


@given(trunk=st.integers(1, 50), branches=st.lists(st.integers(0, 60), min_size=1), capacity=st.integers(1, 120))
def test_a_prompts_completions_are_cut_into_runs_that_fit(trunk: int, branches: list[int], capacity: int) -> None:
    runs = cut_families(trunk, branches, capacity=capacity)
    assert [index for run in runs for index in run] == list(range(len(branches)))
    for run in runs:
        assert len(run) == 1 or trunk + sum(branches[index] for index in run) <= capacity
