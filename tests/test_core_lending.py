"""Cores that move: idle rollout workers lend theirs to the trainer, which takes what makes it faster."""

import os
from collections.abc import Iterator

import pytest
import torch
from tiny_models import random_model

from freerun.model.attention import full_forward_logits
from freerun.runtime.core_lending import CoreLending
from freerun.runtime.trainer_cores import NUM_DECLINED, NUM_TRIALS, ThreadRates, TrainerCores

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


def test_a_rollout_worker_on_the_trainers_core_neither_lends_nor_takes_it() -> None:
    policy, offers = lending({"rollout-0": (0,), "rollout-1": (1,)}, (1,))
    policy.note("rollout-1", is_busy=False)
    policy.note("rollout-0", is_busy=False)
    policy.note("rollout-1", is_busy=True)
    assert offers == [(0, 1)]


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


@pytest.fixture
def own_cores() -> Iterator[set[int]]:
    """Cores and threads of this process, restored."""
    cores, num_threads = os.sched_getaffinity(0), torch.get_num_threads()
    yield cores
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(num_threads)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_step_goes_on_with_the_cores_that_come_and_go_in_its_middle(own_cores: set[int]) -> None:
    first, second = sorted(own_cores)[:2]
    offers: Iterator[Cores] = iter(
        [(second,), (first, second), (first, second), (second,), (first, second), (second,)]
    )
    moves: list[tuple[Cores, set[int], int]] = []
    os.sched_setaffinity(0, {second})
    torch.set_num_threads(1)
    cores = TrainerCores(
        [second],
        poll=lambda: cores.offer(next(offers, (second,))),
        on_change=lambda now: moves.append((now, os.sched_getaffinity(0), torch.get_num_threads())),
    )
    model, plain = random_model(1), random_model(1)
    tokens = [1, 2, 3, 4, 5, 6]
    cores.watch(model.blocks)
    full_forward_logits(model, tokens).logsumexp(-1).sum().backward()
    full_forward_logits(plain, tokens).logsumexp(-1).sum().backward()
    # Two blocks: forward (1, 2 cores), backward (2, then 1).
    assert [(now, affinity, threads) for now, affinity, threads in moves] == [
        ((first, second), {first, second}, 2),
        ((second,), {second}, 1),
    ]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        # Two threads add up in another order than one.
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
