"""Advice from a run's own shares: the division that would have trained more, if it is worth it."""

import pytest
from health_runs import a_start, findings, steps
from hypothesis import given
from hypothesis import strategies as st

from freerun.events.events import AnyEvent, EngineReport
from freerun.events.split_advice import Division, better_division, describe_division
from freerun.types import EngineStats

shares = st.floats(0.01, 1.0)


def test_a_trainer_that_never_rests_gets_gpus_of_engines_that_do() -> None:
    now = Division(num_engines=12, gpus_per_engine=1, num_ranks=4)
    better = better_division(now, engine_share=0.6, trainer_share=1.0)
    assert better is not None
    assert (better.num_engines, better.num_ranks) == (10, 6)
    assert better.factor == pytest.approx(10 / 12 / 0.6)
    assert describe_division(now, better) == (
        "10 of 16 for rollouts instead of 12 (engine.num_workers 10, train.num_ranks 6) would train about 1.4 "
        "times as much"
    )


def test_engines_of_several_gpus_move_as_a_whole() -> None:
    now = Division(num_engines=2, gpus_per_engine=4, num_ranks=8)
    better = better_division(now, engine_share=1.0, trainer_share=0.3)
    assert better is not None
    assert (better.num_engines, better.num_ranks) == (3, 4)


@given(engines=st.integers(1, 40), size=st.sampled_from([1, 2, 4]), ranks=st.integers(1, 40), e=shares, t=shares)
def test_advice_keeps_the_gpus_and_promises_no_more_than_the_stages_can_do(
    engines: int, size: int, ranks: int, e: float, t: float
) -> None:
    now = Division(engines, size, ranks)
    better = better_division(now, engine_share=e, trainer_share=t)
    if better is not None:
        assert better.num_engines * size + better.num_ranks == now.num_units
        assert 1.1 <= better.factor <= better.num_engines / engines / e + 1e-9
        assert better.factor <= better.num_ranks / ranks / t + 1e-9


@pytest.mark.parametrize("now", [Division(1, 1, 1), Division(2, 1, 1), Division(0, 1, 0)])
def test_there_is_no_advice_where_there_is_no_choice(now: Division) -> None:
    assert better_division(now, engine_share=0.3, trainer_share=1.0) is None


def test_a_balanced_run_gets_none() -> None:
    assert better_division(Division(12, 1, 4), engine_share=0.95, trainer_share=0.97) is None


def test_the_summary_says_it_where_it_names_the_limit() -> None:
    start = a_start(num_engines=12, num_ranks=4)
    trained = steps(12, {"gate_closed_seconds": 1.9}, wait_seconds=0.0)
    last = trained[-1].seconds
    busy: list[AnyEvent] = [
        EngineReport(
            seconds=seconds,
            worker=f"rollout-{index}",
            stats=EngineStats(version=1, num_steps=1 + int(seconds), busy_seconds=0.6 * seconds),
        )
        for index in range(12)
        for seconds in (0.0, last)
    ]
    found = findings([start, *busy, *trained])["limit"]
    assert found.text.startswith("the trainer is the limit: the gate was closed")
    assert found.advice.startswith("10 of 16 for rollouts instead of 12")
