"""The feed of the place Time: what each process did in a window of the run's clock.

Times of processes come from `events/intervals.py`, so their shares in any window add up to 1. A window with more
stretches than pixels is sent in bins. If it has many groups, only the newest are sent, with the total number, and
for the newest of these the slot times of each completion.
"""

import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from freerun.dashboard.source import Source, finite
from freerun.events.events import (
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineLoaded,
    EngineReport,
    EvalFinished,
    EvalSkipped,
    GroupFinished,
    Queues,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.intervals import Occupation, Stretch
from freerun.events.reader import RunReader
from freerun.events.trace import make_trace

NUM_BINS = 900
MAX_STRETCHES = 9000
"""Limit for all processes together, divided equally among them."""
MAX_GROUPS = 2000
MAX_SLOT_USES = 6000
BEFORE_SECONDS = 60.0
"""How far before a window reading begins, because a report covers the time before it."""
MANY_EVENTS = 50_000
"""A run with fewer events is read whole, so that silent processes are covered too."""
_OCCUPATION_KINDS = ("activity", "engine_report", "grader_report", "step_finished", "weights_loaded",
                     "worker_died", "run_started", "run_finished")  # fmt: skip
_LOADS = ("weights_loaded", "engine_loaded")
_MOMENTS = ("queues", "worker_died", "checkpoint_saved", "eval_finished", "eval_skipped", "cores_moved")


def time_feed(source: Source, params: Mapping[str, str]) -> object:
    """The window from `from` to `to`, by default the whole run."""
    status = source.status()
    now, state = source.now(status), source.state
    first = 0.0
    begin = max(first, _number(params, "from", first))
    end = min(max(now, 1e-3), _number(params, "to", now))
    if end <= begin:
        begin, end = max(first, end - 1.0), end
    occupation, reports = _occupation(source, begin, end)
    most = max(100, MAX_STRETCHES // max(1, len(occupation.stretches)))
    tracks = {name: _track(stretches, begin, end, most) for name, stretches in occupation.stretches.items()}
    shares = occupation.shares(begin, end)
    return {
        "from": finite(begin),
        "to": finite(end),
        "first": first,
        "last": finite(now),
        "is_live": status is not None and status.state == "running",
        "max_staleness": state.max_staleness,
        "batch_groups": state.prompts_per_step or None,
        "group_size": state.group_size or None,
        "trace_command": f"freerun trace {shlex.quote(source.name_for_commands)}",
        "tracks": tracks,
        "shares": {name: {what: finite(v) for what, v in of.items()} for name, of in shares.items()},
        **_moments(source, reports, begin, end),
    }


def trace_feed(source: Source, params: Mapping[str, str]) -> object:
    """The window from `from` to `to` in the format of `freerun trace`."""
    with source.reader() as reader:
        return make_trace(
            reader, begin=_number(params, "from", 0.0), end=_number(params, "to", sys.float_info.max)
        )


def _occupation(source: Source, begin: float, end: float) -> tuple[Occupation, list[AnyEvent]]:
    """What processes did in the window and shortly before it, with the reports and steps that it comes from."""
    known = Occupation()
    reports: list[AnyEvent] = []
    with source.reader() as reader:
        after = 0.0
        if begin > BEFORE_SECONDS and source.num_events > MANY_EVENTS:
            after = begin - BEFORE_SECONDS
            for _, event in reader.numbered_events("run_started", end=after):
                known(event)
        # The step in progress at the end of the window is only reported after it.
        for _, event in reader.numbered_events(*_OCCUPATION_KINDS, begin=after, end=end + BEFORE_SECONDS):
            known(event)
            if isinstance(event, EngineReport | StepFinished):
                reports.append(event)
    return known, reports


def _track(stretches: Sequence[Stretch], begin: float, end: float, most: int) -> dict[str, object]:
    inside = [s for s in stretches if s.end > begin and s.begin < end]
    if len(inside) <= most:
        return {"stretches": [_laid(s) for s in inside], "is_binned": False}
    return {"stretches": list(_bins(inside, begin, end, min(NUM_BINS, most))), "is_binned": True}


def _laid(stretch: Stretch) -> tuple[float | None, float | None, dict[str, float | None]]:
    parts = {name: finite(share, 4) for name, share in stretch.parts.items()}
    return finite(stretch.begin, 8), finite(stretch.end, 8), parts


def _bins(
    stretches: Sequence[Stretch], begin: float, end: float, num_bins: int
) -> Iterable[tuple[float, float, dict[str, float]]]:
    """Shares of each bin's known time."""
    width = (end - begin) / num_bins
    seconds: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(num_bins)]
    for stretch in stretches:
        first = max(0, int((stretch.begin - begin) / width))
        last = min(num_bins - 1, int((stretch.end - begin) / width))
        for i in range(first, last + 1):
            left, right = begin + i * width, begin + (i + 1) * width
            overlap = min(right, stretch.end) - max(left, stretch.begin)
            if overlap > 0:
                for name, share in stretch.parts.items():
                    seconds[i][name] += share * overlap
    for i, counted in enumerate(seconds):
        if counted:
            shares = {name: round(value / width, 4) for name, value in counted.items()}
            yield round(begin + i * width, 3), round(begin + (i + 1) * width, 3), shares


def _moments(source: Source, reports: Iterable[AnyEvent], begin: float, end: float) -> dict[str, Any]:
    """What happened in the window, by kind."""
    moments: dict[str, list[Any]] = {
        name: [] for name in ("versions", "loads", "queues", "marks", "groups", "engines", "steps")
    }
    with source.reader() as reader:
        # An engine's version at the beginning of the window is known from a load before it.
        for _, event in reader.numbered_events(*_LOADS, begin=begin - BEFORE_SECONDS, end=end):
            _note(moments, event, end)
        for _, event in reader.numbered_events(*_MOMENTS, begin=begin, end=end):
            _note(moments, event, end)
        for event in reports:
            if begin <= event.seconds and (event.seconds <= end or isinstance(event, StepFinished)):
                _note(moments, event, end)
        num_groups = _note_groups(reader, moments, begin, end)
    moments["groups"] = _with_slots(moments["groups"][-MAX_GROUPS:])
    for name in ("queues", "engines", "loads", "versions", "steps", "marks"):
        moments[name] = _thinned(moments[name], 2 * NUM_BINS)
    return moments | {"num_groups": num_groups}


def _note_groups(reader: RunReader, moments: dict[str, list[Any]], begin: float, end: float) -> int:
    """Note the newest groups; returns the number of all, because SQLite only counts those that ended inside."""
    inside = "FROM events WHERE kind = 'group_finished' AND seconds >= :begin AND seconds < :end"
    [[num_groups]] = reader.plain_rows(f"SELECT count(*) {inside}", begin=begin, end=end)
    older = f"SELECT id {inside} ORDER BY id DESC LIMIT 1 OFFSET {MAX_GROUPS}"
    after = max((row[0] for row in reader.plain_rows(older, begin=begin, end=end)), default=0)
    found = reader.numbered_events("group_finished", after=after, begin=begin, end=end + BEFORE_SECONDS)
    for _, event in found:
        num_before = len(moments["groups"])
        _note(moments, event, end)
        if event.seconds >= end:
            num_groups += len(moments["groups"]) - num_before
    return int(num_groups)


def _note(moments: dict[str, list[Any]], event: Any, end: float) -> None:
    at = finite(event.seconds, 8)
    match event:
        case WeightsLoaded():
            moments["versions"].append([at, event.version])
        case EngineLoaded():
            load = [at, event.worker, event.version, finite(event.load_seconds), event.num_interrupts]
            moments["loads"].append(load)
        case Queues():
            moments["queues"].append([at, *_queue(event.counts)])
        case EngineReport():
            stats = event.stats
            row = [at, event.worker, stats.num_running, stats.num_waiting, stats.num_slots, stats.num_evaluating]
            moments["engines"].append(row)
        case StepFinished():
            if event.seconds - event.step_seconds - event.wait_seconds < end:
                moments["steps"].append(_step(event))
        case GroupFinished():
            if (event.started if event.started is not None else event.seconds) < end:
                moments["groups"].append(_group(event))
        case WorkerDied():
            reason = event.reason.partition("\n")[0][:300]
            what = f"{event.worker} died{', restarted' if event.is_restarted else ''}: {reason}"
            moments["marks"].append([at, "death", what])
        case CheckpointSaved():
            moments["marks"].append([at, "checkpoint", f"checkpoint {event.version}"])
        case EvalFinished():
            moments["marks"].append([at, "evaluation", f"evaluation of version {event.version}"])
        case EvalSkipped():
            moments["marks"].append([at, "skipped", f"no evaluation of version {event.version}: {event.reason}"])
        case CoresMoved():
            noun = "core" if len(event.cores) == 1 else "cores"
            borrowed = f", {event.num_borrowed} of them borrowed" if event.num_borrowed else ""
            what = f"the trainer computes on {len(event.cores)} {noun}{borrowed}"
            moments["marks"].append([at, "cores", what])


def _queue(counts: Any) -> list[Any]:
    values = msgspec.structs.asdict(counts)
    names = ("num_running", "num_ready", "gate_capacity", "oldest_version")
    return [values[name] for name in names]


def _step(event: StepFinished) -> dict[str, Any]:
    return {
        "version": event.result.version,
        "begin": finite(event.seconds - event.step_seconds, 8),
        "end": finite(event.seconds, 8),
        "wait": finite(event.wait_seconds),
    }


def _group(event: GroupFinished) -> list[Any]:
    life = [
        None if t is None else finite(t, 8) for t in (event.started, event.sampled, event.graded, event.seconds)
    ]
    slots = [[finite(began, 8), finite(ended, 8)] for began, ended in event.slots]
    facts = [event.outcome, event.num_interrupts, finite(event.mean_reward), slots]
    return [event.ordinal, event.worker, *life, *facts]


def _with_slots(groups: list[list[Any]]) -> list[list[Any]]:
    """Keep the slot times of the newest groups up to the limit; drop those of the others."""
    room = MAX_SLOT_USES
    kept = []
    for *facts, slots in reversed(groups):
        room -= len(slots)
        kept.append([*facts, slots if room >= 0 else []])
    return kept[::-1]


def _thinned(rows: list[Any], most: int) -> list[Any]:
    """At most `most` rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // most))]


def _number(params: Mapping[str, str], name: str, default: float) -> float:
    given = params.get(name, "")
    try:
        value = float(given or default)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f'{name} = "{given[:40]}" is not a number of seconds')
    return value
