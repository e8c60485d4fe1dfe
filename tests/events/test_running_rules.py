"""Rules of health about running: who is the limit, what is wasted, whether it still moves."""

from typing import Any

import pytest
from health_runs import a_start, a_step, an_end, findings, healthy_run, steps

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    EngineReport,
    GroupFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.types import Doing, EngineStats


def groups(number: int, outcome: Any) -> list[AnyEvent]:
    return [GroupFinished(seconds=1.0, ordinal=ordinal, outcome=outcome) for ordinal in range(number)]


def test_the_limit_is_the_one_that_the_others_wait_for() -> None:
    def limit(*, waits: float, closed: float) -> str:
        events = [a_start(), *steps(12, {"gate_closed_seconds": closed}, wait_seconds=waits)]
        return findings(events)["limit"].text if "limit" in findings(events) else ""

    assert limit(waits=0.5, closed=1.0) == ""
    assert limit(waits=0.52, closed=0.5).startswith(
        "generation is the limit: the trainer waited for rollouts 26 % of the time in steps 3-12"
    )
    assert limit(waits=0.1, closed=1.1).startswith(
        "the trainer is the limit: the gate was closed 55 % of the time in steps 3-12"
    )
    assert limit(waits=0.6, closed=1.1).startswith("trainer and engines wait for each other")


def test_nothing_is_advised_that_a_run_on_live_traffic_refuses_or_its_owner_cannot_change() -> None:
    live = a_start(is_live=True)
    assert "limit" not in findings([live, *steps(12, wait_seconds=1.5)]), "clients may stay away"
    closed = steps(12, {"gate_closed_seconds": 1.1}, wait_seconds=0.1)
    assert findings([live, *closed])["limit"].text.startswith("the trainer is the limit")
    stale = findings([live, *steps(12, staleness_counts={4: 64})])["at_the_bound"]
    assert stale.advice == "set buffer.max_staleness below 4"
    dropped = findings([live, *groups(94, "buffered"), *groups(6, "dropped")])["waste"]
    assert dropped.advice.startswith("rated sessions came faster")


def test_a_synchronous_run_waits_by_design() -> None:
    events = [a_start(max_staleness=0), *steps(12, wait_seconds=1.5, staleness_counts={0: 64})]
    assert "limit" not in findings(events)


def test_samples_at_the_bound_suggest_a_smaller_one() -> None:
    events = [a_start(), *steps(12, staleness_counts={1: 32, 4: 32})]
    assert "at_the_bound" not in findings(events)
    found = findings([a_start(), *steps(12, staleness_counts={1: 30, 4: 34})])["at_the_bound"]
    assert found.text.startswith("53 % of the samples of steps 3-12 are as stale as the bound of 4 allows")
    assert found.advice.startswith("set buffer.keep_fresh = true")
    one_ahead = [a_start(max_staleness=1), *steps(12, staleness_counts={1: 64})]
    assert "at_the_bound" not in findings(one_ahead), "the next smaller bound is no overlap at all"


def test_lost_groups_are_counted_by_their_fate() -> None:
    assert "waste" not in findings([*groups(95, "buffered"), *groups(5, "dropped")])
    dropped = findings([*groups(94, "buffered"), *groups(6, "dropped")])["waste"]
    assert dropped.text == "6 % of the groups were lost: 6 dropped"
    assert dropped.advice == 'set buffer.policy = "wait"'
    failed = findings([*groups(90, "buffered"), *groups(2, "requeued"), *groups(8, "failed")])["waste"]
    assert failed.text == "10 % of the groups were lost: 2 requeued, 8 failed"
    assert "log.txt" in failed.advice
    assert "waste" not in findings([*groups(10, "buffered"), *groups(9, "dropped")]), "too few to judge"
    assert "waste" not in findings([*groups(20, "buffered"), *groups(90, "filtered")]), "on purpose"


@pytest.mark.parametrize(("recomputed", "is_found"), [(300, False), (301, True)])
def test_much_recomputation_is_mentioned(recomputed: int, is_found: bool) -> None:
    stats = EngineStats(num_tokens=1000, num_recomputed_tokens=recomputed)
    report = EngineReport(seconds=1.0, worker="rollout-0", stats=stats)
    assert ("waste" in findings([a_start(), report, *steps(20)])) == is_found
    assert "waste" not in findings([a_start(), report, *steps(12)]), "the first loads say little"


def test_weights_that_are_not_confirmed_are_an_alarm_after_a_while() -> None:
    events = [a_start(), *steps(12), a_step(13)]
    assert "weights" not in findings(events, now=26 + 10)
    found = findings(events, now=26 + 10.5)["weights"]
    assert found.text == "version 13 has not been confirmed by all engines for 10 s"
    assert "weights" not in findings([*events, an_end(13)], now=99.0)
    assert "weights" not in findings([*events, WeightsLoaded(seconds=27.0, version=13, checksum="")], now=99.0)


def test_steps_of_the_session_before_need_no_confirmation() -> None:
    again = a_start(version=10, seconds=60.0)
    assert "weights" not in findings([a_start(), *steps(12), again], now=99.0)


def test_a_run_that_stands_still_says_since_when_and_what_the_trainer_does() -> None:
    waiting = Activity(seconds=24.0, worker="trainer", doing=Doing("waiting", "5 of 8 groups"))
    events = [a_start(), *steps(12), waiting]
    assert "stall" not in findings(events, now=34.0)
    found = findings(events, now=64.0)["stall"]
    assert found.text == "nothing has happened for 40 s, 20 times a step; the trainer is waiting for 5 of 8 groups"
    assert "stall" not in findings([*events, an_end(12)], now=64.0)
    sampled = EngineReport(seconds=60.0, worker="rollout-0", stats=EngineStats(num_tokens=5))
    assert "stall" not in findings([*events, sampled], now=64.0), "tokens are progress"
    assert "stall" not in findings([a_start()], now=64.0), "workers may take long to start"


def test_slow_steps_are_no_stall() -> None:
    slow = steps(8, step_seconds=60.0)
    assert "stall" not in findings([a_start(), *slow], now=16 + 180.0)
    assert "stall" in findings([a_start(), *slow], now=16 + 181.0)


def test_what_is_not_saved_is_lost_if_the_run_dies() -> None:
    events = [a_start(num_steps=12), *steps(12)]
    assert "safety" not in findings(events, now=600.0)
    assert findings(events, now=780.0)["safety"].text.startswith("nothing has been saved for 13 minutes")
    saved = CheckpointSaved(seconds=24.0, version=12, directory="runs/r/checkpoints/step-12")
    assert "safety" not in findings([*events, saved], now=620.0)
    assert "safety" in findings([*events, saved], now=630.0)
    assert "safety" not in findings([a_start(num_steps=100_000), *steps(12)], now=900.0), "a tenth of a long run"


def test_a_broken_bound_is_an_alarm() -> None:
    broken = findings([a_start(), a_step(1, staleness_counts={5: 1})])["bound"]
    assert broken.level == "alarm"
    assert broken.text == "staleness 5 was trained on, max_staleness is 4"
    assert "bound" not in findings([a_start(), a_step(1, staleness_counts={4: 1})])


def test_deaths_are_counted_with_the_last_reason() -> None:
    died = [
        WorkerDied(seconds=float(number), worker=f"rollout-{number % 2}", reason="exit -9\nlog", is_restarted=True)
        for number in range(3)
    ]
    found = findings([*healthy_run(), *died])["deaths"]
    assert found.text == "3 worker deaths (rollout-0, rollout-1); the last: exit -9"
