"""A trace is valid for any store, has a track for each process, and arrows to loads and steps."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checked_traces import check_trace
from recorded_events import a_start, an_end, an_eval, make_group, make_step, write

from freerun.cli.main import main
from freerun.events.events import (
    AnyEvent,
    CheckpointSaved,
    EngineLoaded,
    EngineReport,
    GraderReport,
    GroupFinished,
    QueueCounts,
    Queues,
    WorkerDied,
)
from freerun.events.reader import RunReader
from freerun.events.store import Store
from freerun.events.trace import trace_events
from freerun.types import EngineStats


def a_run() -> list[AnyEvent]:
    """Four steps of two groups, with everything that a run reports."""
    events: list[AnyEvent] = [a_start(), an_eval(0)]
    for version in range(1, 5):
        begin = 2.0 * (version - 1)
        groups = (make_group(2 * version), make_group(2 * version + 1))
        for group in groups:
            times: Any = {"started": begin, "sampled": begin + 0.2, "graded": begin + 0.25}
            event = GroupFinished(
                seconds=begin + 0.3, ordinal=group.ordinal, outcome="buffered", worker="rollout-0", **times,
                slots=((begin, begin + 0.1), (begin + 0.01, begin + 0.2)),
            )  # fmt: skip
            events.append(event)
        counts = QueueCounts(
            num_running=3, num_ready=2, gate_capacity=8, oldest_version=version, gate_closed_seconds=0.0
        )
        events.append(Queues(seconds=begin + 0.4, counts=counts))
        step = make_step(version, groups, entropy=0.5)
        phases = (("proximal", 0.4), ("training", 0.9), ("publishing", 0.1))
        events.append(msgspec.structs.replace(step, result=msgspec.structs.replace(step.result, phases=phases)))
        stats = EngineStats(
            version=version, num_steps=version, decode_seconds=0.7 * version, up_seconds=2.0 * version
        )
        events += [
            EngineReport(seconds=2.0 * version, worker="rollout-0", stats=stats),
            EngineLoaded(
                worker="rollout-0",
                seconds=2.0 * version + 0.05,
                version=version,
                load_seconds=0.02,
                num_interrupts=3,
            ),
            GraderReport(
                seconds=2.0 * version, worker="grader-0", num_graded=4, num_failed=0,
                busy_seconds=0.1 * version, slowest_seconds=0.1, up_seconds=2.0 * version,
            ),
        ]  # fmt: skip
    died = WorkerDied(seconds=8.5, worker="rollout-0", reason="</script>\ud800", is_restarted=True)
    return [*events, CheckpointSaved(seconds=8.6, version=4, directory="x"), died, an_end()]


def trace_of(directory: Path, **window: float) -> list[dict[str, Any]]:
    with RunReader(directory) as reader:
        events = trace_events(reader, **window)
    check_trace(events)
    return events


def of(events: list[dict[str, Any]], *phs: str) -> list[str]:
    return [event["name"] for event in events if event["ph"] in phs]


def test_a_run_has_all_tracks_slices_counters_and_arrows(tmp_path: Path) -> None:
    write(tmp_path, *a_run())
    events = trace_of(tmp_path)
    tracks = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    assert tracks == ["trainer", "grader-0", "rollout-0", "controller"]
    assert {"step 1", "step 4", "proximal", "training", "decoding", "grading", "load version 4"} <= {
        *of(events, "X")
    }
    threads = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert [name for name in threads if name.startswith("slot ")] == [f"slot {i}" for i in range(4)], (
        "2 x 2 at once"
    )
    assert {"sequences", "cache tokens", "groups", "gate", "version", "reward", "entropy"} <= {*of(events, "C")}
    assert {"checkpoint 4", "rollout-0 died", "evaluation of version 0", "finished"} <= {*of(events, "i")}
    assert of(events, "b").count("grading") == 8
    assert of(events, "s").count("weights") == 4
    assert of(events, "s").count("group") == 8


def test_the_phases_of_a_step_are_inside_it(tmp_path: Path) -> None:
    write(tmp_path, *a_run())
    slices = [e for e in trace_of(tmp_path) if e["ph"] == "X"]
    [step] = [e for e in slices if e["name"] == "step 2"]
    inside = [
        e["name"]
        for e in slices
        if (e["pid"], e["tid"]) == (step["pid"], step["tid"])
        and step["ts"] <= e["ts"] < e["ts"] + e["dur"] <= step["ts"] + step["dur"]
        and e is not step
    ]
    assert inside[:2] == ["proximal", "training"]


def test_a_window_has_only_what_overlaps_it(tmp_path: Path) -> None:
    write(tmp_path, *a_run())
    events = trace_of(tmp_path, begin=3.0, end=3.5)
    assert [name for name in of(events, "X") if name.startswith("step")] == ["step 2"]
    assert len(events) < len(trace_of(tmp_path)) / 2


def test_a_store_without_the_newer_fields_and_one_that_was_rewound_give_valid_traces(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1), make_step(2), make_step(3))
    with Store(tmp_path) as store:
        store.rewind(1, seconds=2.0)
        for event in (msgspec.structs.replace(a_start(1), seconds=2.0), make_step(2), an_end("interrupted")):
            store(event)
    events = trace_of(tmp_path)
    assert [name for name in of(events, "X") if name.startswith("step")] == ["step 1", "step 2"]
    assert "rewound to version 1" in of(events, "i")


def test_the_verb_writes_a_file_and_refuses_an_empty_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "r", *a_run())
    assert main(["trace", str(tmp_path / "r"), "--from", "1", "--out", str(tmp_path / "t.json")]) == 0
    trace = json.loads((tmp_path / "t.json").read_text())
    assert f"wrote {len(trace['traceEvents'])} events" in capsys.readouterr().out
    assert trace["otherData"]["run"] == "r"
    check_trace(trace["traceEvents"])
    assert main(["trace", str(tmp_path / "r"), "--from", "5", "--to", "5"]) == 2
    assert main(["trace", str(tmp_path / "r"), "--out", str(tmp_path / "no" / "t.json")]) == 2
    assert "name another with --out" in capsys.readouterr().err
