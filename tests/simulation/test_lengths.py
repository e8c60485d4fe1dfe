"""Lengths: means, cuts and likeness that were asked for are those that are drawn, and order changes nothing."""

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.simulation.lengths import (
    Drift,
    LognormalLengths,
    RecordedLengths,
    capped_mean,
    capped_square,
    fit_cut,
    fit_mean,
    measure_likeness,
)

sigmas = st.floats(0.1, 1.5)
caps = st.integers(100, 50_000)


@given(mu=st.floats(1.0, 10.0), sigma=sigmas, cap=caps, likeness=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_every_length_is_between_one_and_the_cap_and_repeats(
    mu: float, sigma: float, cap: int, likeness: float, seed: int
) -> None:
    lengths = LognormalLengths(mu, sigma, cap, likeness=likeness, seed=seed)
    first = lengths.of_group(7, 8)
    assert all(1 <= length <= cap for length in first)
    assert lengths.of_group(8, 8) != first or max(first) in (1, cap) or likeness > 0.99 or sigma < 0.2
    assert lengths.of_group(7, 8) == first
    assert lengths.of_group(7, 3) == first[:3]


@given(cap=caps, share=st.floats(0.05, 0.8), sigma=sigmas)
def test_the_mean_that_was_asked_for_is_found(cap: int, share: float, sigma: float) -> None:
    mean = max(2.0, share * cap)
    assert capped_mean(fit_mean(mean, sigma, cap), sigma, cap) == pytest.approx(mean, rel=1e-6)


@given(cap=caps, share=st.floats(0.15, 0.5), cut=st.floats(0.02, 0.1))
def test_mean_and_share_cut_off_decide_both_parameters(cap: int, share: float, cut: float) -> None:
    mu, sigma = fit_cut(share * cap, cut, cap)
    assert capped_mean(mu, sigma, cap) == pytest.approx(share * cap, rel=1e-3)


def test_a_mean_beyond_the_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="between 1 and the cap of 100"):
        fit_mean(100, 0.8, 100)


def test_drawn_lengths_have_the_moments_of_the_formula() -> None:
    mu = fit_mean(1200, 0.8, 4096)
    lengths = LognormalLengths(mu, 0.8, 4096, likeness=0.5)
    drawn = [length for ordinal in range(2000) for length in lengths.of_group(ordinal, 8)]
    assert fmean(drawn) == pytest.approx(1200, rel=0.03)
    assert fmean(length**2 for length in drawn) == pytest.approx(capped_square(mu, 0.8, 4096), rel=0.05)


@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.9])
def test_likeness_is_measured_as_it_was_drawn(likeness: float) -> None:
    lengths = LognormalLengths(5.0, 0.7, 100_000, likeness=likeness)
    groups = [lengths.of_group(ordinal, 8) for ordinal in range(1500)]
    assert measure_likeness(groups) == pytest.approx(likeness, abs=0.05)


def test_lengths_drift_by_the_factor_and_stay_there() -> None:
    drift = Drift(8.0, num_prompts=100)
    assert (drift.at(0), drift.at(100), drift.at(1000)) == (1.0, 8.0, 8.0)
    assert drift.at(50) == pytest.approx(math.sqrt(8))
    grown = LognormalLengths(6.0, 0.5, 10**6, drift=drift)
    still = LognormalLengths(6.0, 0.5, 10**6)
    ratio = fmean(map(fmean, (grown.of_group(200 + i, 4) for i in range(300)))) / fmean(
        map(fmean, (still.of_group(200 + i, 4) for i in range(300)))
    )
    assert ratio == pytest.approx(8.0, rel=0.01)


def test_a_runs_own_lengths_are_replayed_by_ordinal_and_borrowed_elsewhere() -> None:
    lengths = RecordedLengths({3: (10, 20), 5: (30, 40)})
    assert lengths.of_group(3, 2) == [10, 20]
    assert lengths.of_group(5, 2) == [30, 40]
    assert lengths.of_group(99, 2) in ([10, 20], [30, 40])
    assert lengths.of_group(99, 2) == lengths.of_group(99, 2)
    assert set(lengths.of_group(3, 4)) <= {10, 20, 30, 40}


def test_lengths_that_come_back_are_the_first_ones_again() -> None:
    drift = Drift(8.0, 100, comes_back=True)
    assert [drift.at(ordinal) for ordinal in (0, 100, 200, 900)] == [1.0, 8.0, 1.0, 1.0]
    assert drift.at(50) == drift.at(150) == pytest.approx(8**0.5)
    assert Drift(8.0, 100).at(900) == 8.0
