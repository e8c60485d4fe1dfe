"""Cores that move: idle rollout workers lend theirs to the trainer, which takes what makes it faster."""

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from tiny_models import random_model

from freerun.model.attention import full_forward_logits
from freerun.runtime.core_lending import CoreLending
from freerun.runtime.trainer_cores import NUM_DECLINED, NUM_TRIALS, ThreadRates, TrainerCores, move_threads

Cores = tuple[int, ...]


def lending(rollout_cores: dict[str, Cores], trainer_cores: Cores) -> tuple[CoreLending, list[Cores]]:
    offers: list[Cores] = []
    return CoreLending(trainer_cores=trainer_cores, rollout_cores=rollout_cores, offer=offers.append), offers


def test_the_cores_of_idle_rollout_workers_are_the_trainers_until_they_have_work() -> None:
    policy, offers = lending({"rollout-0": (0, 1), "rollout-1": (2, 3)}, (4,))
    policy.note("rollout-1", is_busy=False)
    policy.note("rollout-0", is_busy=False)
    policy.note("rollout-1", is_busy=True)
    policy.note("rollout-0", is_busy=True)
    assert offers == [(2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 4), (4,)]


def test_nothing_is_offered_twice() -> None:
    policy, offers = lending({"rollout-0": (0,)}, (1,))
    for _ in range(2):
        policy.note("rollout-0", is_busy=False)
    assert offers == [(0, 1)]


def test_nothing_is_lent_while_a_busy_rollout_worker_sits_on_the_trainers_core() -> None:
    policy, offers = lending({"rollout-0": (0,), "rollout-1": (1,)}, (1,))
    policy.note("rollout-0", is_busy=False)
    assert offers == []
    policy.note("rollout-1", is_busy=False)
    policy.note("rollout-1", is_busy=True)
    assert offers == [(0, 1), (1,)]


def rates_of(*, one: float, two: float) -> ThreadRates:
    rates = ThreadRates()
    for _ in range(NUM_TRIALS):
        rates.measure(1, one)
        rates.measure(2, two)
    return rates


def test_both_numbers_of_threads_are_tried_before_one_is_chosen() -> None:
    rates = ThreadRates()
    chosen = []
    for _ in range(2 * NUM_TRIALS + 1):
        chosen.append(rates.choose(1, 2))
        rates.measure(chosen[-1], 1.0 / chosen[-1])
    assert chosen == [2] * NUM_TRIALS + [1] * NUM_TRIALS + [2]


@pytest.mark.parametrize(("two", "chosen"), [(0.6, 2), (0.97, 1), (1.5, 1)])
def test_more_threads_are_used_if_they_are_faster_by_a_margin(two: float, chosen: int) -> None:
    assert rates_of(one=1.0, two=two).choose(1, 2) == chosen


def test_what_was_too_slow_is_tried_again_later() -> None:
    rates = rates_of(one=1.0, two=2.0)
    chosen = [rates.choose(1, 2) for _ in range(NUM_DECLINED + 1)]
    assert chosen == [1] * NUM_DECLINED + [2]


def affinities() -> set[Cores]:
    """Where the threads of this process may run; one entry if all may run on the same cores."""
    return {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def two_cores() -> Iterator[Cores]:
    """Two of this process, which begins with one thread on the second; where it was, it is again afterwards."""
    cores, num_threads = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
    move_threads(cores[1:2])
    torch.set_num_threads(1)
    yield cores[0], cores[1]
    move_threads(cores)
    torch.set_num_threads(num_threads)


@needs_two_cores
def test_a_step_goes_on_with_the_cores_that_come_and_go_in_its_middle(two_cores: Cores) -> None:
    own, both = two_cores[1:], two_cores
    offers: Iterator[Cores] = iter([own, both, both, own])
    moves: list[tuple[Cores, int]] = []
    cores = TrainerCores(
        own,
        poll=lambda: cores.offer(next(offers)),
        on_change=lambda now: moves.append((now, torch.get_num_threads())),
    )
    model, plain = random_model(1), random_model(1)
    tokens = [1, 2, 3, 4, 5, 6]
    cores.watch(model.blocks)
    full_forward_logits(model, tokens).logsumexp(-1).sum().backward()
    full_forward_logits(plain, tokens).logsumexp(-1).sum().backward()
    # Two blocks: forward (1, 2 cores), backward (2, then 1).
    assert moves == [(both, 2), (own, 1)]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        # Two threads add up in another order than one.
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


@needs_two_cores
def test_all_threads_move_those_that_wait_in_a_pool_too(two_cores: Cores) -> None:
    own, both = two_cores[1:], two_cores
    cores = TrainerCores(own, poll=lambda: None, on_change=lambda now: None)
    is_over = threading.Event()
    pooled = threading.Thread(target=is_over.wait)
    pooled.start()
    try:
        for offered in (both, own):
            cores.offer(offered)
            cores.move()
            assert affinities() == {offered}
    finally:
        is_over.set()
        pooled.join()
