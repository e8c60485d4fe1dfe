"""pass@k is what drawing k samples again and again would give, and its interval holds what it promises."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.events.pass_at_k import estimate_pass_at_k, pass_at_k


@pytest.mark.parametrize(("num_samples", "num_correct"), [(1, 0), (1, 1), (5, 2), (6, 3), (7, 0), (7, 7)])
def test_pass_at_k_counts_the_subsets_with_a_right_sample(num_samples: int, num_correct: int) -> None:
    samples = [True] * num_correct + [False] * (num_samples - num_correct)
    for k in range(1, num_samples + 1):
        subsets = list(itertools.combinations(samples, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at_k(num_samples, num_correct, k) == pytest.approx(expected)


def test_more_tries_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="pass@8 needs at least 8 samples, there are 4"):
        pass_at_k(4, 2, 8)


def draw(rng: random.Random, *, num_prompts: int, num_samples: int) -> list[tuple[int, int]]:
    """Prompts that are mostly easy or hard, as real ones are; on average 4 in 5 samples are right."""
    difficulties = [rng.betavariate(2.0, 0.5) for _ in range(num_prompts)]
    return [(num_samples, sum(rng.random() < p for _ in range(num_samples))) for p in difficulties]


@pytest.mark.parametrize(("num_prompts", "num_samples"), [(20, 8), (64, 4), (200, 1)])
def test_nineteen_intervals_of_twenty_hold_the_true_rate(num_prompts: int, num_samples: int) -> None:
    rng = random.Random(0)
    estimates = [
        estimate_pass_at_k(draw(rng, num_prompts=num_prompts, num_samples=num_samples), 1) for _ in range(400)
    ]
    num_holding = sum(estimate.low <= 0.8 <= estimate.high for estimate in estimates)
    assert 0.92 <= num_holding / 400 <= 0.985


def test_samples_of_one_prompt_do_not_count_as_prompts() -> None:
    few = estimate_pass_at_k([(64, 64)] * 5 + [(64, 0)] * 5, 1)
    many = estimate_pass_at_k([(1, 1)] * 320 + [(1, 0)] * 320, 1)
    assert few.high - few.low > 5 * (many.high - many.low)


def test_all_right_is_not_certainty() -> None:
    assert estimate_pass_at_k([(8, 8)] * 20, 1) == pytest.approx((1.0, 0.839, 1.0), abs=1e-3)
    assert estimate_pass_at_k([(8, 0)] * 20, 1) == pytest.approx((0.0, 0.0, 0.161), abs=1e-3)


def test_nothing_graded_gives_no_number() -> None:
    assert all(math.isnan(number) for number in estimate_pass_at_k([], 1))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 6))
def test_an_interval_lies_within_bounds_and_around_its_estimate(num_correct: list[int], k: int) -> None:
    estimate = estimate_pass_at_k([(6, c) for c in num_correct], k)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
