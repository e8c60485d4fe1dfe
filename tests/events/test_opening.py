"""A run that is opened without reading all of it has the state of a replay of every event."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from recorded_events import a_loss, make_step, write
from rich_runs import rich_run

from freerun.dashboard.source import MAX_EXAMINED, Source
from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineLoaded,
    EngineReport,
    GraderReport,
    GroupFinished,
    ProcessReport,
    ProcessUse,
    QueueCounts,
    Queues,
    RecentCompletion,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.health import examine
from freerun.events.metrics import RunState
from freerun.events.opening import open_state, recorded_state
from freerun.events.reader import RunReader
from freerun.events.schema import StoreError
from freerun.events.store import Store
from freerun.terminal.lines import summarize
from freerun.trackers.prometheus import exposition
from freerun.types import Doing, EngineStats

WORKERS = ("rollout-0", "rollout-1", "grader-0", "trainer", "controller")
COMPARED_APART = ("occupation", "token_marks", "engines")


def told(state: RunState) -> dict[str, Any]:
    """All that anybody shows of a state, and what the next events add to."""
    now = state.seconds + 1.0
    told = {field.name: getattr(state, field.name) for field in fields(state) if field.name not in COMPARED_APART}
    return {name: repr(value) for name, value in told.items()} | {
        "shares": state.occupation.shares(now - 60.0, now),
        "stretches": state.occupation.stretches,
        "engines": [(name, vars(track)) for name, track in state.engines.items()],
        "token_marks": vars(state.token_marks),
        "health": examine(state, now),
        "prometheus": exposition(state, now),
        "summary": summarize(state, unfinished="still running") if state.name else "",
    }


def replayed(directory: Path) -> RunState:
    state = RunState()
    with RunReader(directory) as reader:
        for event in reader.events():
            state(event)
    return state


def opened(directory: Path) -> RunState:
    with RunReader(directory) as reader:
        return open_state(reader).state


class Chance:
    """Events of workers that report, die and come back, in any order; the clock goes on."""

    def __init__(self, seed: int, *, pace: float) -> None:
        self.rng = random.Random(seed)
        self.pace = pace
        self.seconds = 0.0
        self.version = 0
        self.since = dict.fromkeys(WORKERS, 0.0)

    def session(self, num_events: int) -> Iterator[AnyEvent]:
        yield RunStarted(
            seconds=self.seconds, name="r", directory="runs/r", num_steps=60, version=self.version, max_staleness=4
        )
        self.since = dict.fromkeys(WORKERS, self.seconds)
        kinds = (
            self.report, self.report, self.report, self.activity, self.group, self.group, self.step, self.grader,
            self.small, self.loaded, self.death,
        )  # fmt: skip
        for _ in range(num_events):
            self.seconds += self.rng.random() * self.pace
            yield self.rng.choices(kinds, weights=(8, 8, 8, 6, 9, 9, 5, 2, 4, 4, 0.3))[0]()

    def report(self) -> AnyEvent:
        worker = self.rng.choice(WORKERS[:2])
        up = self.seconds - self.since[worker]
        stats = EngineStats(
            version=None if up < 1.0 else self.version, num_steps=int(3 * up), num_tokens=int(50 * up),
            busy_seconds=0.5 * up, decode_seconds=0.4 * up, load_seconds=0.1 * up, idle_seconds=0.2 * up,
            up_seconds=up if self.rng.random() < 0.9 else 0.0,
        )  # fmt: skip
        return EngineReport(seconds=self.seconds, worker=worker, stats=stats)

    def activity(self) -> AnyEvent:
        doing = Doing(self.rng.choice(("generating", "waiting", "training", "idle")), f"at {self.seconds}")
        return Activity(seconds=self.seconds, worker=self.rng.choice(WORKERS), doing=doing)

    def group(self) -> AnyEvent:
        outcome = self.rng.choices(("buffered", "dropped", "failed", "filtered"), weights=(20, 1, 1, 1))[0]
        shown = RecentCompletion(prompt="p", completion=f"{self.seconds}", reward=1.0, is_correct=True)
        return GroupFinished(
            seconds=self.seconds + self.rng.random(),
            ordinal=self.rng.randrange(10**6),
            outcome=outcome,  # type: ignore[arg-type]
            reason="§outcome¨buffered, attempt 3" if outcome == "failed" else "",
            excerpt=shown if self.rng.random() < 0.1 else None,
        )

    def step(self) -> AnyEvent:
        self.version += 1
        step = make_step(self.version, (), loss=0.5, entropy=self.rng.random())
        return StepFinished(
            seconds=self.seconds, result=step.result, groups=(), step_seconds=0.3, wait_seconds=self.rng.random()
        )

    def grader(self) -> AnyEvent:
        up = self.seconds - self.since["grader-0"]
        return GraderReport(
            seconds=self.seconds, worker="grader-0", num_graded=int(up), num_failed=0, busy_seconds=up / 2,
            slowest_seconds=self.rng.random(), up_seconds=up,
        )  # fmt: skip

    def small(self) -> AnyEvent:
        at, number = self.seconds, self.rng.randrange(9)
        counts = QueueCounts(
            num_running=number, num_ready=1, gate_capacity=2, oldest_version=None, gate_closed_seconds=0.0
        )
        use = ProcessUse(worker="trainer", cpu_seconds=at, memory_bytes=number)
        return self.rng.choice((
            Queues(seconds=at, counts=counts), ProcessReport(seconds=at, processes=(use,)),
            CheckpointSaved(seconds=at, version=self.version, directory="c"),
            CoresMoved(seconds=at, cores=(0, 1), num_borrowed=number % 2),
        ))  # fmt: skip

    def loaded(self) -> AnyEvent:
        if self.rng.random() < 0.5:
            return WeightsLoaded(seconds=self.seconds, version=self.version, checksum="0")
        worker = self.rng.choice(WORKERS[:2])
        return EngineLoaded(
            seconds=self.seconds, worker=worker, version=self.version, load_seconds=0.1, num_interrupts=1
        )

    def death(self) -> AnyEvent:
        worker = self.rng.choice(WORKERS[:3])
        self.since[worker] = self.seconds
        return WorkerDied(seconds=self.seconds, worker=worker, reason="exit status -9", is_restarted=True)


@pytest.mark.parametrize("seed", range(24))
def test_an_opened_run_has_the_state_of_a_replay_and_goes_on_like_it(tmp_path: Path, seed: int) -> None:
    chance = Chance(seed, pace=(0.2, 3.0, 40.0)[seed % 3])
    rng = random.Random(seed)
    events = list(chance.session(rng.choice((0, 5, 300))))
    write(tmp_path, *events)
    for _ in range(seed % 4):  # resumed at an earlier step, and an earlier time
        back = rng.randrange(chance.version + 1)
        with Store(tmp_path) as store:
            store.rewind(back, seconds=chance.seconds)
        chance.version, chance.seconds = back, chance.seconds * rng.choice((0.3, 0.9, 1.0))
        write(tmp_path, *chance.session(rng.choice((3, 100, 400))))
    if seed % 5 == 0:
        end = RunFinished(seconds=chance.seconds, outcome="failed", version=chance.version, model_directory="")
        write(tmp_path, end)
    quick, whole = opened(tmp_path), replayed(tmp_path)
    assert told(quick) == told(whole)
    for event in chance.session(30):
        quick(event)
        whole(event)
        assert examine(quick, event.seconds) == examine(whole, event.seconds)
    assert told(quick) == told(whole)


def test_the_page_marks_the_alarms_that_a_replay_finds(tmp_path: Path) -> None:
    chance = Chance(3, pace=1.0)
    write(tmp_path, *chance.session(6500))
    state, source = RunState(), Source(tmp_path)
    source.update()
    with RunReader(tmp_path) as reader:
        events = list(reader.events())
    num_left = sum(isinstance(event, StepFinished) for event in events)
    distance = num_left // MAX_EXAMINED
    assert distance > 1
    found, complaining = [], set()
    for event in events:
        state(event)
        num_left -= isinstance(event, StepFinished)
        if isinstance(event, StepFinished) and num_left % distance == 0:
            findings = examine(state, event.seconds)
            found += [(f.rule, f.text, event.result.version) for f in findings if f.rule not in complaining]
            complaining = {f.rule for f in findings}
    assert found
    assert [(mark.rule, mark.text, mark.step) for mark in source.alarms] == found
    assert told(source.state) == told(state)
    source.close()


def test_a_run_with_everything_in_it_is_shown_as_a_replay_shows_it(tmp_path: Path) -> None:
    write(tmp_path, *rich_run(30), a_loss())
    with RunReader(tmp_path) as reader:
        whole = replayed(tmp_path)
        reader.show_batch(whole, 30)
        assert told(recorded_state(reader)) == told(whole)


def test_most_of_a_long_run_is_not_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Chance(7, pace=10.0)
    write(tmp_path, *chance.session(4000))
    seen: list[AnyEvent] = []
    take = RunState.__call__

    def note(state: RunState, event: AnyEvent) -> None:
        seen.append(event)
        take(state, event)

    monkeypatch.setattr(RunState, "__call__", note)
    opened(tmp_path)
    assert len(seen) < 2000


def test_a_damaged_event_that_the_state_needs_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, *rich_run(3))
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as db, db:
        db.execute("UPDATE events SET seconds = seconds + 1 WHERE kind = 'step_finished'")
    with RunReader(tmp_path) as reader, pytest.raises(StoreError, match="checksum"):
        open_state(reader)
