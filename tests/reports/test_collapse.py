"""Where a metric collapsed: found where it was planted, and not where there is none."""

import numpy as np
import pytest
from recorded_events import an_eval

from freerun.reports.collapse import NUM_SHUFFLES, find_eval_fall, find_fall

RISE = np.linspace(0.0, 1.0, 20)


def points(values: object, *, noise: float = 0.05, seed: int = 0) -> list[tuple[int, float]]:
    array = np.asarray(values, float)
    noisy = array + np.random.default_rng(seed).normal(0, noise, len(array))
    return [(step, float(value)) for step, value in enumerate(noisy, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_a_sudden_fall_is_found_at_its_step(seed: int) -> None:
    found = find_fall(points([*RISE, *[1.0] * 10, *[0.2] * 12], seed=seed))
    assert found is not None
    assert (found.last_good, found.begin, found.end) == (30, 31, 42)
    assert found.before == pytest.approx(1, abs=0.1)
    assert found.after == pytest.approx(0.2, abs=0.1)
    assert found.num_as_large <= 0.01 * NUM_SHUFFLES


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_fall_begins_before_its_middle(seed: int) -> None:
    found = find_fall(points([*RISE, *[1.0] * 10, *np.linspace(1, 0, 20)], seed=seed))
    assert found is not None
    assert 30 < found.begin <= 40


def test_a_metric_of_which_more_is_worse_is_turned_round() -> None:
    values = [*[1.0] * 20, *[9.0] * 10]
    assert find_fall(points(values)) is None
    found = find_fall(points(values), is_less_worse=False)
    assert found is not None
    assert found.begin == 21
    assert found.after == pytest.approx(9, abs=0.1)


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0, 1, 60),
        np.minimum(1, np.linspace(0, 3, 60)),
        [*RISE, *[1.0] * 10, *[0.1] * 4, *[1.0] * 10],  # a dip that recovers
        [1.0] * 40,
        [1.0, 0.0],
        [],
    ],
    ids=["rising", "saturating", "dip", "constant", "two points", "none"],
)
def test_what_does_not_collapse_is_left_alone(values: object) -> None:
    assert find_fall(points(values)) is None


def test_noise_alone_is_seldom_taken_for_a_collapse() -> None:
    alarms = [find_fall(points([0.0] * 60, noise=1.0, seed=seed)) is not None for seed in range(200)]
    assert sum(alarms) <= 6


def test_values_that_are_not_finite_are_left_out() -> None:
    values = points([*RISE, *[1.0] * 10, *[0.2] * 12])
    values[5] = (6, float("nan"))
    found = find_fall(values)
    assert found is not None
    assert found.begin == 31


def test_held_out_accuracy_fell_between_two_evaluations_whose_intervals_do_not_overlap() -> None:
    rows = [
        an_eval(version, accuracy) for version, accuracy in ((0, 0.2), (8, 0.7), (16, 0.6), (24, 0.3), (32, 0.1))
    ]
    found = find_eval_fall(rows)
    assert found is not None
    assert (found.best.version, found.last_good.version, found.first_bad.version) == (8, 16, 24)


def test_held_out_accuracy_that_recovered_or_fell_within_its_intervals_did_not_collapse() -> None:
    for accuracies in ((0.2, 0.7, 0.3, 0.65), (0.2, 0.7, 0.6), (0.7,), ()):
        assert find_eval_fall([an_eval(version, value) for version, value in enumerate(accuracies)]) is None
