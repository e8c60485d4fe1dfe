"""Confidence intervals against closed forms, numerical integration and simulation."""

import math

import numpy as np
import pytest

from freerun.events.accuracy import percent, percent_within
from freerun.events.pass_at_k import Estimate
from freerun.reports.intervals import central_probability, t_interval, t_quantile
from freerun.reports.tables import number, points, with_interval


def test_quantiles_are_the_closed_forms_of_one_and_two_degrees_of_freedom() -> None:
    assert t_quantile(1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)
    assert t_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


def test_quantiles_fall_to_that_of_the_normal_distribution() -> None:
    quantiles = [t_quantile(degrees) for degrees in range(1, 40)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert t_quantile(20_000) == pytest.approx(1.959963984540054, abs=2e-4)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10])
def test_probabilities_are_the_integral_of_the_density(degrees: int) -> None:
    t = np.linspace(-2.5, 2.5, 100_001)
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    density = scale * (1 + t**2 / degrees) ** (-(degrees + 1) / 2)
    assert central_probability(2.5, degrees) == pytest.approx(float(np.trapezoid(density, t)), abs=1e-8)


def test_the_interval_over_seeds_holds_the_truth_in_95_percent_of_studies() -> None:
    samples = np.random.default_rng(0).normal(0.7, 0.1, (4000, 3))
    estimates = [t_interval(row.tolist()) for row in samples]
    coverage = np.mean([e.low <= 0.7 <= e.high for e in estimates])
    assert coverage == pytest.approx(0.95, abs=0.012)


def test_one_value_has_no_interval_and_what_is_no_number_is_left_out() -> None:
    assert not t_interval([0.5]).has_interval
    assert t_interval([0.5, math.nan]).value == 0.5
    assert not t_interval([0.5, math.nan]).has_interval
    assert math.isnan(t_interval([]).value)


def test_an_estimate_reads_with_its_interval() -> None:
    assert with_interval(t_interval([0.25, 0.75]), number(3)) == "0.500 ± 3.177"
    assert with_interval(t_interval([0.25]), number(3)) == "0.250"
    assert with_interval(Estimate(1.0, 0.8389, 1.0), number(3)) == "1.000 [0.839, 1.000]"
    assert with_interval(t_interval([]), number(3)) == "-"
    assert with_interval(Estimate(0.013, -0.002, 0.028), points) == "+1.3 ± 1.5"
    assert with_interval(Estimate(-0.013, -0.05, 0.028), points) == "-1.3 [-5.0, +2.8]"


def test_an_accuracy_has_one_form_everywhere() -> None:
    assert percent(0.225) == "22.5 %"
    assert percent(math.nan) == "-"
    assert percent_within(0.225, 0.181, 0.273) == "22.5 % [18.1 %, 27.3 %]"
    assert percent_within(0.225, math.nan, math.nan) == "22.5 %"
    assert with_interval(Estimate(0.225, 0.2, 0.25), percent) == "22.5 % ± 2.5 %"
    assert with_interval(Estimate(0.225, 0.181, 0.273), percent) == "22.5 % [18.1 %, 27.3 %]"
