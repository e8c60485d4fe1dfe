"""Whatever events say about processes, the shares of each add up in any window (with Hypothesis)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.events.events import (
    Activity,
    EngineReport,
    GraderReport,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.intervals import occupation
from freerun.types import Doing, EngineStats, StepResult

seconds = st.floats(0, 30, allow_nan=False)
few = st.floats(0, 3, allow_nan=False)
workers = st.sampled_from(["rollout-0", "rollout-1"])
states: st.SearchStrategy[Any] = st.sampled_from(
    ["starting", "generating", "waiting", "training", "loading", "idle", "grading", "died"]
)


@st.composite
def stories(draw: st.DrawFn) -> list[Any]:
    """A run with reports in any order, clocks that do not agree, deaths, and a second session."""
    now, version = 0.0, 0
    events: list[Any] = [_started(0.0)]
    up = dict.fromkeys(("rollout-0", "rollout-1", "grader-0"), 0.0)
    for kind in draw(st.lists(st.sampled_from("aegsdr"), max_size=25)):
        now += draw(few)
        if kind == "a":
            worker = draw(st.sampled_from(["trainer", "rollout-0", "grader-0"]))
            events.append(Activity(seconds=now, worker=worker, doing=Doing(draw(states))))
        elif kind == "e":
            worker = draw(workers)
            up[worker] += draw(few)
            parts = [draw(few) for _ in range(5)]
            names = ("decode_seconds", "recompute_seconds", "evaluate_seconds", "load_seconds", "idle_seconds")
            spent: dict[str, Any] = dict(zip(names, parts, strict=True))
            stats = EngineStats(up_seconds=up[worker], **spent)
            events.append(EngineReport(seconds=now, worker=worker, stats=stats))
        elif kind == "g":
            up["grader-0"] += draw(few)
            events.append(
                GraderReport(
                    seconds=now,
                    worker="grader-0",
                    num_graded=1,
                    num_failed=0,
                    busy_seconds=draw(few),
                    slowest_seconds=0.0,
                    up_seconds=up["grader-0"],
                )
            )
        elif kind == "s":
            version += 1
            phases = draw(
                st.lists(st.tuples(st.sampled_from(["training", "publishing", "loading"]), few), max_size=4)
            )
            result = StepResult(version=version, metrics={}, staleness_counts={}, phases=tuple(phases))
            step, wait = draw(few), draw(few)
            events.append(
                StepFinished(seconds=now, result=result, groups=(), step_seconds=step, wait_seconds=wait)
            )
        elif kind == "d":
            worker = draw(workers)
            up[worker] = 0.0
            events.append(WorkerDied(seconds=now, worker=worker, reason="", is_restarted=True))
        else:
            now = draw(st.floats(0, now)) if now else 0.0
            events.append(_started(now))
    events.append(RunFinished(seconds=now, outcome="finished", version=version, model_directory=""))
    return events


def _started(at: float) -> RunStarted:
    return RunStarted(seconds=at, name="", directory="", num_steps=9, version=0, max_staleness=1)


@given(events=stories(), begin=seconds, length=st.floats(0.01, 30))
def test_shares_add_up_in_any_window(events: list[Any], begin: float, length: float) -> None:
    for of_worker in occupation(events).shares(begin, begin + length).values():
        assert sum(of_worker.values()) == pytest.approx(1, abs=0.01)
        assert min(of_worker.values()) >= 0


def test_after_the_last_load_the_trainer_waits_for_the_end_of_the_run() -> None:
    result = StepResult(version=1, metrics={}, staleness_counts={}, phases=(("training", 2.0),))
    events = [
        _started(0.0),
        StepFinished(seconds=2.0, result=result, groups=(), step_seconds=2.0, wait_seconds=0.0),
        WeightsLoaded(seconds=3.0, version=1, checksum="c"),
        RunFinished(seconds=12.0, outcome="finished", version=1, model_directory=""),
    ]
    assert occupation(events).shares(2.0, 12.0)["trainer"] == pytest.approx({"loading": 0.1, "waiting": 0.9})
