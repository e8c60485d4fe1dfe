"""A higher bound is never promised more than a trainer that does not wait."""

import pytest

from freerun.events.bound_advice import describe_bound, most_to_gain


@pytest.mark.parametrize("share", [0.05, 0.4, 0.7, 0.9])
def test_a_trainer_that_never_waits_trains_the_rest_of_the_time_too(share: float) -> None:
    gain = most_to_gain(share)
    assert gain is not None
    assert gain * share == pytest.approx(1.0)


@pytest.mark.parametrize("share", [None, 0.0, 0.95, 1.0])
def test_nothing_is_promised_where_nothing_is_known_or_left(share: float | None) -> None:
    assert most_to_gain(share) is None
    assert describe_bound(2, trainer_share=share) == "raise buffer.max_staleness"


def test_the_advice_names_the_bound_and_the_limit() -> None:
    expected = "raise buffer.max_staleness above 2: the run can train at most 2.0 times as much"
    assert describe_bound(2, trainer_share=0.5) == expected
