"""The balance of rollout workers: it finds the number, keeps its limits, and comes to rest."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig, Recipe
from freerun.controller.balance import (
    DEAD_BAND,
    MAX_STEPS_TO_RETIRE,
    STEPS_BETWEEN_MOVES,
    BalancePolicy,
    WorkerBalance,
)
from freerun.errors import ConfigError
from freerun.events.events import AnyEvent, Notice, StepFinished
from freerun.types import StepResult

Shares = tuple[float, float]
"""For which the gate was closed, and the trainer waited."""


def play(
    shares_of: Callable[[int], Shares], *, num_steps: int, begin: int, fewest: int = 1, most: int = 16
) -> list[int]:
    """The number of workers after each step, if the shares depend on it."""
    policy, number, numbers = BalancePolicy(fewest=fewest, most=most), begin, []
    for _ in range(num_steps):
        gate, wait = shares_of(number)
        number += policy.note(gate_share=gate, wait_share=wait, num_workers=number)
        numbers.append(number)
    return numbers


def moves_of(numbers: list[int], begin: int) -> list[int]:
    """The steps after which the number changed."""
    return [step for step, (a, b) in enumerate(pairwise([begin, *numbers])) if a != b]


def world(needed: float) -> Callable[[int], Shares]:
    """`needed` workers generate exactly what the trainer takes."""

    def shares(number: int) -> Shares:
        return max(0.0, 1 - needed / number), max(0.0, 1 - number / needed)

    return shares


def test_workers_retire_while_the_gate_is_closed_and_come_back_when_the_trainer_waits() -> None:
    assert play(lambda number: (0.9, 0.0), num_steps=9, begin=8)[-1] == 5
    assert play(lambda number: (0.0, 0.9), num_steps=9, begin=5)[-1] == 8


def test_a_move_needs_three_steps_since_the_last_one() -> None:
    assert moves_of(play(lambda number: (1.0, 0.0), num_steps=12, begin=9), 9) == [2, 5, 8, 11]


def test_the_step_that_began_before_a_move_is_left_out() -> None:
    policy = BalancePolicy(fewest=1, most=9)
    assert policy.note(gate_share=1.0, wait_share=0.0, num_workers=5) == 0
    moves = [policy.note(gate_share=0.1, wait_share=0.0, num_workers=5) for _ in range(50)]
    assert not any(moves)


@given(begin=st.integers(1, 16), signal=st.floats(-DEAD_BAND, DEAD_BAND))
def test_within_the_dead_band_nothing_moves(begin: int, signal: float) -> None:
    shares = max(0.0, signal), max(0.0, -signal)
    assert set(play(lambda number: shares, num_steps=200, begin=begin)) == {begin}


@given(
    shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=120),
    limits=st.tuples(st.integers(1, 6), st.integers(6, 12)),
    begin=st.integers(6, 6),
)
def test_the_limits_are_kept_and_moves_are_apart_for_any_shares(
    shares: list[Shares], limits: tuple[int, int], begin: int
) -> None:
    given_shares = iter(shares)
    numbers = play(lambda number: next(given_shares), num_steps=len(shares), begin=begin, fewest=limits[0],
                   most=limits[1])  # fmt: skip
    assert all(limits[0] <= number <= limits[1] for number in numbers)
    assert all(abs(b - a) <= 1 for a, b in pairwise([begin, *numbers]))
    moves = moves_of(numbers, begin)
    assert all(b - a >= STEPS_BETWEEN_MOVES for a, b in pairwise(moves))


@given(begin=st.integers(1, 16), needed=st.floats(0.5, 16))
def test_it_finds_the_number_from_any_start_and_comes_to_rest(begin: int, needed: float) -> None:
    numbers = play(world(needed), num_steps=400, begin=begin)
    settled = numbers[60:]
    assert max(settled) - min(settled) <= 1, "not more than one worker too many or too few"
    assert all(number >= needed * (1 - 2 * DEAD_BAND) - 1 for number in settled)
    assert all(number <= needed / (1 - 2 * DEAD_BAND) + 1 for number in settled)
    assert len(moves_of(settled, settled[0])) <= 2 * 6, "each retirement that is taken back doubles the next wait"


@given(begin=st.integers(2, 16), needed=st.integers(2, 15))
def test_where_no_number_is_balanced_the_larger_one_is_kept_most_of_the_time(begin: int, needed: int) -> None:
    """As with a deep buffer: the gate is closed all the time as soon as rollouts are a little faster."""

    def shares(number: int) -> Shares:
        return (1.0, 0.0) if number > needed else (0.0, 0.5)

    settled = play(shares, num_steps=2000, begin=begin)[1000:]
    assert {*settled} <= {needed, needed + 1}
    assert settled.count(needed + 1) > 0.9 * len(settled)
    apart = moves_of(settled, settled[0])[::2]
    assert all(b - a >= MAX_STEPS_TO_RETIRE for a, b in pairwise(apart))


class Pool:
    """Satisfies `balance.ElasticWorkers`."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.can_spare = True

    def add(self) -> str:
        self.num_workers += 1
        return f"rollout-{self.num_workers - 1}"

    def retire(self) -> str:
        if not self.can_spare:
            return ""
        self.num_workers -= 1
        return f"rollout-{self.num_workers}"


def step(version: int, *, gate_closed: float, waited: float) -> StepFinished:
    """One of ten seconds."""
    result = StepResult(version=version, metrics={"gate_closed_seconds": gate_closed}, staleness_counts={})
    return StepFinished(
        seconds=10.0 * version, result=result, groups=(), step_seconds=10.0 - waited, wait_seconds=waited
    )


def test_the_shares_are_those_of_the_time_since_the_last_step_and_moves_are_told() -> None:
    pool, told = Pool(4), list[AnyEvent]()
    balance = WorkerBalance(pool, fewest=1, most=4, emit=told.append)
    for version in range(1, 5):
        balance(step(version, gate_closed=9.0, waited=0.5))
    assert pool.num_workers == 3
    assert [event.text for event in told if isinstance(event, Notice)] == [
        "rollout-3 retires: the gate was closed 90% of the last step; 3 of 4 rollout workers"
    ]
    for version in range(5, 8):
        balance(step(version, gate_closed=0.0, waited=8.0))
    assert pool.num_workers == 4
    assert isinstance(told[-1], Notice)
    assert told[-1].text == "rollout-3 is added: the trainer waited 80% of the last step; 4 of 4 rollout workers"


def test_a_worker_that_cannot_be_spared_now_is_asked_for_again_later() -> None:
    pool, told = Pool(4), list[AnyEvent]()
    pool.can_spare = False
    balance = WorkerBalance(pool, fewest=1, most=4, emit=told.append)
    for version in range(1, 5):
        balance(step(version, gate_closed=9.0, waited=0.0))
    assert (pool.num_workers, told) == (4, [])
    pool.can_spare = True
    for version in range(5, 8):
        balance(step(version, gate_closed=9.0, waited=0.0))
    assert pool.num_workers == 3


@pytest.mark.parametrize(
    ("buffer", "key"),
    [
        ({"max_staleness": 0}, "buffer.max_staleness = 0"),
        ({"whole_batches": True}, "buffer.whole_batches"),
        ({"keep_fresh": True}, "buffer.keep_fresh"),
    ],
)
def test_a_gate_that_is_closed_for_other_reasons_cannot_be_followed(buffer: dict[str, Any], key: str) -> None:
    engine = EngineConfig(num_workers=4, min_workers=2)
    with pytest.raises(
        ConfigError, match=f"engine.min_workers = 2 follows how long the gate is closed, and {key}"
    ):
        Recipe(engine=engine, buffer=BufferConfig(**buffer))


def test_fewer_workers_than_the_fewest_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.min_workers = 3 exceeds engine\.num_workers = 2"):
        EngineConfig(num_workers=2, min_workers=3)
    assert not EngineConfig(num_workers=2).is_elastic
    assert not EngineConfig(num_workers=2, min_workers=2).is_elastic
    assert EngineConfig(num_workers=2, min_workers=1).is_elastic
