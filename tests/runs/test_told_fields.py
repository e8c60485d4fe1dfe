"""A real run tells everything that its events and tables have a place for; its processes' times add up."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from read_metrics import names_read_by_rules
from tiny_runs import Run, make_run

from freerun.events.events import (
    AnyEvent,
    EngineLoaded,
    EngineReport,
    GraderReport,
    GroupFinished,
    ProcessReport,
    Queues,
    RunStarted,
    StepFinished,
)
from freerun.events.intervals import occupation
from freerun.events.reader import RunReader
from freerun.events.schema import EvalCompletionRow, LostRow, StepRow, TrajectoryRow

SETTINGS = (
    "--reward.grader", "tests.support.moody_grader:score", "--train.num_steps", "14", "--buffer.policy", "drop",
    "--objective.dynamic_sampling", "true", "--buffer.max_staleness", "2", "--train.lr", "0.03",
)  # fmt: skip
NEVER_SET: dict[Any, set[str]] = {
    GroupFinished: {"prompt", "lost"},  # in the table `lost`
    # The first two are in the table `trajectories`; the gate is often full at the moment of a step.
    StepFinished: {"groups", "result.trajectories", "queues.gate_capacity"},
    StepRow: {"queues.gate_capacity"},
    # Of resumed runs, of live traffic, of forks; the settings are in the table `sessions`.
    RunStarted: {"version", "sft_step", "is_live", "provenance.task_sha256", "origin", "settings"},
    EngineReport: {
        "stats.num_waiting",
        "stats.num_evaluating",  # of a moment: a short evaluation can fall between two reports
        "stats.num_preemptions",
        "stats.num_adopted_tokens",  # of sessions, as the next
        "stats.num_parked_tokens",
    },
    TrajectoryRow: {"reward_turns", "part"},  # of sessions
    EvalCompletionRow: {"sample", "part"},  # the first sample is kept
    LostRow: {"part"},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunReader]:
    run = Run(make_run(tmp_path_factory.mktemp("told")), *SETTINGS)
    assert run.wait() == 0, run.output
    with run.reader() as opened:
        yield opened


@pytest.fixture(scope="module")
def events(reader: RunReader) -> list[AnyEvent]:
    return list(reader.events())  # type: ignore[arg-type]


def paths_with_a_value(value: Any, path: str = "") -> Iterator[str]:
    """Every field, however deep, that holds something else than nothing."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from paths_with_a_value(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        yield path
        for item in value:
            yield from paths_with_a_value(item, path)
    elif isinstance(value, np.ndarray):
        yield from [path] if value.size else []
    elif value and not (isinstance(value, float) and math.isnan(value)):
        yield path


def paths_of(kind: Any, path: str = "") -> Iterator[str]:
    """Every field of a struct, however deep."""
    for field in msgspec.structs.fields(kind):
        inner = [part for part in getattr(field.type, "__args__", ()) if isinstance(part, type)]
        structs = [part for part in (field.type, *inner) if isinstance(part, type)]
        structs = [part for part in structs if issubclass(part, msgspec.Struct)]
        if structs and structs[0].__name__ not in ("Prompt", "Trajectory", "Group", "Span", "TrainedTrajectory"):
            yield from paths_of(structs[0], f"{path}.{field.name}")
        else:
            yield f"{path}.{field.name}"


def assert_all_told(kind: type[Any], found: list[Any]) -> None:
    assert found, kind
    told = {path for item in found for path in paths_with_a_value(item)}
    untold = {path.lstrip(".") for path in paths_of(kind) if path not in told} - NEVER_SET.get(kind, set())
    assert untold == set(), f"{kind.__name__} never had a value for these"


@pytest.mark.parametrize(
    "kind",
    [RunStarted, GroupFinished, Queues, StepFinished, EngineReport, EngineLoaded, GraderReport, ProcessReport],
)
def test_every_field_of_every_event_gets_a_value(events: list[AnyEvent], kind: type[Any]) -> None:
    assert_all_told(kind, [event for event in events if isinstance(event, kind)])


def test_every_column_gets_a_value(reader: RunReader) -> None:
    steps = reader.steps()
    assert_all_told(StepRow, list(steps))
    assert_all_told(TrajectoryRow, [row for step in steps for row in reader.trajectories(step.version)])
    assert_all_told(LostRow, list(reader.lost()))
    assert {row.outcome for row in reader.lost()} >= {"filtered", "failed"}
    assert_all_told(EvalCompletionRow, [row for e in reader.evals() for row in reader.eval_completions(e.version)])
    [provenance] = reader.provenance()
    assert provenance.torch
    assert len(provenance.grader_sha256) == 64


def test_weights_are_told_for_each_sampled_token(reader: RunReader) -> None:
    for step in reader.steps():
        for row in reader.trajectories(step.version):
            num_sampled = sum(span.num_tokens for span in row.spans if span.version is not None)
            assert row.log_weights.dtype == np.float16
            assert row.log_weights.size in (0, num_sampled)


def test_every_metric_that_a_rule_reads_is_made_in_a_run(reader: RunReader) -> None:
    names = names_read_by_rules()
    assert {"equal_group_share", "gate_closed_seconds", "common_reward"} <= names
    made = {name for step in reader.steps() for name in step.metrics}
    assert names - made == {"num_calls"}, "which sessions have"
    assert {"reward/digits", "num_updates", "grade_seconds", "reward_std"} <= made


def test_the_shares_of_every_process_add_up_in_any_window_of_the_run(events: list[AnyEvent]) -> None:
    known = occupation(events)
    end = events[-1].seconds
    rng = np.random.default_rng(0)
    windows = [(0.0, end), *(tuple(sorted(rng.uniform(0, end, 2))) for _ in range(200))]
    for begin, stop in windows:
        shares = known.shares(float(begin), float(stop))
        assert {"trainer", "rollout-0", "grader-0"} <= shares.keys()
        for worker, of_worker in shares.items():
            assert sum(of_worker.values()) == pytest.approx(1, abs=0.01), worker
            assert min(of_worker.values()) >= 0
    whole = known.shares(0.0, end)
    assert {"decoding", "waiting"} <= whole["rollout-0"].keys()
    assert {"training", "waiting", "publishing"} <= whole["trainer"].keys()
    assert whole["trainer"].get("unknown", 0.0) < 0.05
