"""Cores of a cluster's machines: never given to two workers, and given back with a worker's end."""

from hypothesis import given
from hypothesis import strategies as st

from freerun.processes.core_ledger import CoreLedger


def test_workers_of_one_machine_get_cores_of_their_own() -> None:
    ledger = CoreLedger()
    assert ledger.take("trainer", "10.0.0.1", {0, 1, 2, 3}, 2) == (0, 1)
    assert ledger.take("rollout-0", "10.0.0.1", {0, 1, 2, 3}, 2) == (2, 3)


def test_cores_of_another_machine_are_others() -> None:
    ledger = CoreLedger()
    assert ledger.take("trainer", "10.0.0.1", {0}, 1) == (0,)
    assert ledger.take("rollout-0", "10.0.0.2", {0}, 1) == (0,)


def test_a_worker_that_cannot_have_all_it_wants_gets_none() -> None:
    ledger = CoreLedger()
    ledger.take("trainer", "10.0.0.1", {0, 1, 2}, 2)
    assert ledger.take("rollout-0", "10.0.0.1", {0, 1, 2}, 2) == ()
    assert ledger.take("rollout-1", "10.0.0.1", {0, 1, 2}, 1) == (2,)


def test_only_cores_that_the_node_may_use_are_given() -> None:
    assert CoreLedger().take("trainer", "10.0.0.1", {5, 7}, 2) == (5, 7)


def test_what_a_worker_had_is_free_after_its_end_and_for_its_successor() -> None:
    ledger = CoreLedger()
    ledger.take("rollout-0", "10.0.0.1", {0, 1}, 2)
    assert ledger.take("rollout-0", "10.0.0.1", {0, 1}, 2) == (0, 1)
    ledger.give_back("rollout-0")
    ledger.give_back("rollout-0")
    assert ledger.take("rollout-1", "10.0.0.1", {0, 1}, 2) == (0, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.integers(0, 4), st.booleans())))
def test_no_core_is_ever_given_to_two(history: list[tuple[int, str, int, bool]]) -> None:
    ledger, held = CoreLedger(), {}
    for worker, machine, num_cores, is_leaving in history:
        if is_leaving:
            ledger.give_back(str(worker))
            held.pop(worker, None)
        else:
            held[worker] = {(machine, core) for core in ledger.take(str(worker), machine, range(6), num_cores)}
        assert len(set().union(*held.values())) == sum(map(len, held.values()))
