"""The gate admits by Eq. 3, on what is consumed or may still be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.buffer.gate import StalenessGate


def test_a_new_run_may_start_one_batch_more_than_its_staleness() -> None:
    assert StalenessGate(batch_size=4, max_staleness=0).capacity == 4
    assert StalenessGate(batch_size=4, max_staleness=2).capacity == 12


def test_publishing_a_version_admits_one_more_batch() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=0)
    gate.start(4)
    assert gate.capacity == 0
    gate.advance(1)
    assert gate.capacity == 4


@given(
    batch_size=st.integers(1, 9),
    max_staleness=st.integers(0, 5),
    version=st.integers(0, 9),
    started=st.integers(0, 200),
)
def test_one_more_may_start_exactly_when_equation_3_holds_with_it(
    batch_size: int, max_staleness: int, version: int, started: int
) -> None:
    gate = StalenessGate(batch_size=batch_size, max_staleness=max_staleness)
    gate.advance(version)
    gate.started = started
    with_it = started + 1
    assert (gate.capacity >= 1) == ((with_it - 1) // batch_size <= version + max_staleness)


def test_starting_over_capacity_is_refused_and_counts_nothing() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=0)
    gate.start(3)
    with pytest.raises(ValueError, match=r"cannot start 2 samples, the capacity is 1 at version 0"):
        gate.start(2)
    assert gate.capacity == 1


def test_what_is_given_back_may_start_again() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=0)
    gate.start(4)
    gate.give_back(2)
    assert gate.capacity == 2


def test_more_than_was_started_cannot_be_given_back() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=0)
    gate.start(2)
    with pytest.raises(ValueError, match="cannot give back 3 samples, 2 were started"):
        gate.give_back(3)


def test_negative_numbers_are_refused() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=0)
    with pytest.raises(ValueError, match="cannot start -1"):
        gate.start(-1)
    with pytest.raises(ValueError, match="cannot give back -1"):
        gate.give_back(-1)
    with pytest.raises(ValueError, match="batch_size = 0"):
        StalenessGate(batch_size=0, max_staleness=0)


def test_versions_may_be_confirmed_twice_or_skipped_but_never_taken_back() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=0)
    gate.advance(2)
    gate.advance(2)
    assert gate.capacity == 12
    with pytest.raises(ValueError, match="version 1 is older than 2"):
        gate.advance(1)


def test_a_gate_that_lets_fewer_start_ahead_takes_nothing_back() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=3)
    gate.start(16)
    gate.ahead = 5
    assert gate.capacity == 0
    gate.advance(1)
    assert gate.capacity == 0, "13 would have started"
    gate.advance(2)
    assert gate.capacity == 1
    gate.ahead = 12
    assert gate.capacity == 8


def test_a_resumed_gate_starts_ahead_what_it_did_within_a_bound_and_batches_that_may_differ() -> None:
    assert StalenessGate(batch_size=4, max_staleness=3, ahead=6).capacity == 10
    assert StalenessGate(batch_size=4, max_staleness=1, ahead=6).capacity == 8
    assert StalenessGate(batch_size=8, max_staleness=3, ahead=6).capacity == 16
    assert StalenessGate(batch_size=4, max_staleness=0, ahead=6).capacity == 4


def test_a_resumed_gate_counts_what_is_consumed_and_buffered_but_not_what_ran() -> None:
    gate = StalenessGate(batch_size=4, max_staleness=1)
    gate.start(8)
    gate.advance(1)  # 4 consumed, 2 buffered, 2 running
    resumed = StalenessGate(batch_size=4, max_staleness=1, version=1, num_buffered=2)
    assert resumed.capacity == gate.capacity + 2
    resumed.start(2)
    assert resumed.started == gate.started
