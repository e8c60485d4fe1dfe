"""Cores that move, the trainer's side: when it looks for offers, what it takes up, and what it says."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scripted_parent import NUM_LAYERS, STEP, make_model, serve
from tiny_models import random_model
from training_batches import OBJECTIVE

from freerun.model.attention import full_forward_logits
from freerun.workers.messages import BatchPart, CoresInUse, StepDone, ToTrainer, TrainStep, UseCores
from freerun.workers.trainer_cores import NUM_DECLINED, NUM_TRIALS, ThreadRates, TrainerCores, move_threads

Cores = tuple[int, ...]


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


def test_a_number_of_threads_is_not_judged_by_its_first_block() -> None:
    rates = ThreadRates()
    rates.measure(2, 1000.0)
    for _ in range(NUM_TRIALS):
        rates.measure(1, 1.0)
        rates.measure(2, 0.6)
    assert rates.choose(1, 2) == 2


def test_what_was_too_slow_is_tried_again_later() -> None:
    rates = rates_of(one=1.0, two=2.0)
    chosen = [rates.choose(1, 2) for _ in range(NUM_DECLINED + 1)]
    assert chosen == [1] * NUM_DECLINED + [2]


def affinities() -> set[Cores]:
    """Where the threads of this process may run; one entry if all may run on the same cores."""
    return {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}


@pytest.fixture
def two_cores() -> Iterator[Cores]:
    """Two of this process, which begins with one thread on the second; where it was, it is again afterwards."""
    cores, num_threads = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
    if len(cores) < 2:
        pytest.skip("needs two cores")
    move_threads(cores[1:2])
    torch.set_num_threads(1)
    yield cores[0], cores[1]
    move_threads(cores)
    torch.set_num_threads(num_threads)


def test_a_step_goes_on_with_the_cores_that_come_and_go_in_its_middle(two_cores: Cores) -> None:
    own, both = two_cores[1:], two_cores
    offers: Iterator[Cores] = iter([own, both, both, own, both, own])
    moves: list[tuple[Cores, int]] = []
    cores = TrainerCores(
        own,
        rates=ThreadRates(),
        poll=lambda: cores.offer(next(offers)),
        on_change=lambda now: moves.append((now, torch.get_num_threads())),
    )
    model, plain = random_model(1), random_model(1)
    tokens = [1, 2, 3, 4, 5, 6]
    cores.watch(model)
    full_forward_logits(model, tokens).logsumexp(-1).sum().backward()
    full_forward_logits(plain, tokens).logsumexp(-1).sum().backward()
    # Forward two blocks and the head (1, 2, 2 cores), backward the blocks after the head (1, 2, 1).
    assert moves == [(both, 2), (own, 1), (both, 2), (own, 1)]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        # Two threads add up in another order than one.
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("two", "taken_up"), [(2.0, []), (0.5, [2])])
def test_an_offer_that_makes_it_slower_is_declined(two_cores: Cores, two: float, taken_up: list[int]) -> None:
    moves: list[int] = []
    cores = TrainerCores(
        two_cores[1:],
        rates=rates_of(one=1.0, two=two),
        poll=lambda: None,
        on_change=lambda now: moves.append(len(now)),
    )
    cores.offer(two_cores)
    cores.move()
    assert moves == taken_up


def test_only_blocks_with_gradients_are_measured() -> None:
    rates = ThreadRates()
    for _ in range(NUM_TRIALS):
        rates.measure(2, 0.0)
    model = random_model(1)
    TrainerCores([0], rates=rates, poll=lambda: None, on_change=lambda now: None).watch(model)

    def choice_after_a_trial() -> int:
        for _ in range(NUM_TRIALS):
            full_forward_logits(model, [1, 2, 3])
        return rates.choose(1, 2)

    with torch.no_grad():
        assert choice_after_a_trial() == 1, "one thread, of which nothing is known, is to be tried"
    assert choice_after_a_trial() == 2


def test_all_threads_move_those_that_wait_in_a_pool_too(two_cores: Cores) -> None:
    own, both = two_cores[1:], two_cores
    cores = TrainerCores(own, rates=ThreadRates(), poll=lambda: None, on_change=lambda now: None)
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


def test_a_trainer_that_nobody_lends_cores_looks_for_none(tmp_path: Path) -> None:
    alone = serve(tmp_path, STEP, borrows_cores=False)
    assert isinstance(alone.sent[-1], StepDone)
    assert alone.num_looks == 0


def test_a_batch_that_arrives_in_parts_is_one_step(tmp_path: Path) -> None:
    whole = serve(tmp_path / "whole", STEP, STEP)
    groups = STEP.groups
    parts: list[ToTrainer] = [
        BatchPart(groups=groups[:1]),
        BatchPart(groups=groups[1:2]),
        TrainStep(groups=groups[2:]),
    ]
    in_parts = serve(tmp_path / "parts", *parts, STEP)
    results = [[m.result for m in parent.sent if isinstance(m, StepDone)] for parent in (whole, in_parts)]
    for one, other in zip(*results, strict=True):
        assert one.version == other.version
        assert one.metrics["grad_norm"] == other.metrics["grad_norm"]
        assert one.staleness_counts == other.staleness_counts


PASS = NUM_LAYERS + 1
"""Looks for offers in one pass through a model: before each block, and between the last one and the head."""
RATING = UPDATE = START = 1
"""One look each when the batch is rated, when the weights are updated, and when a pass starts."""


def test_a_trainer_looks_for_offers_forward_and_backward_and_before_an_update(tmp_path: Path) -> None:
    assert serve(tmp_path, STEP).num_looks == RATING + START + PASS + PASS + UPDATE


def test_a_trainer_looks_for_offers_while_its_reference_computes(tmp_path: Path) -> None:
    objective = dataclasses.replace(OBJECTIVE, kl_coefficient=0.1)
    reference = make_model(tmp_path / "reference")
    parent = serve(tmp_path, STEP, objective=objective, reference_directory=str(reference))
    assert parent.num_looks == RATING + (START + PASS) + (START + PASS + PASS) + UPDATE


def test_a_waiting_trainer_moves_when_it_is_told(two_cores: Cores, tmp_path: Path) -> None:
    """Or it would be shown with cores that others compute on."""
    own, both = two_cores[1:], two_cores
    parent = serve(tmp_path, UseCores(cores=both), UseCores(cores=own))
    assert [message.cores for message in parent.sent if isinstance(message, CoresInUse)] == [both, own]
