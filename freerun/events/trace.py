"""Exports a run's timeline as a trace in Chrome's JSON format, which Perfetto opens, from the store alone.

    trainer       steps with their phases, waiting between them; counters of the main metrics
    rollout-N     what the engine did, its loads, the groups it sampled, the completions in its slots; counters of
                  sequences and cache
    grader-N      grading and waiting
    controller    groups as they finish, checkpoints, evaluations, deaths; counters of the queues

Arrows lead from a step to the loads of its version, and from a finished group to the step that trained on it.
The activities within a report of half a second are drawn one after the other: the shares are true, the order is
not. The calls of sessions have no times in the store: a group's slice says how many sequences its samples
became.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from freerun.errors import FreerunError
from freerun.events.events import (
    CheckpointSaved,
    CoresMoved,
    EngineLoaded,
    EngineReport,
    EvalFinished,
    EvalSkipped,
    GroupFinished,
    Queues,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.intervals import TRAINER, Occupation
from freerun.events.reader import RunReader
from freerun.events.schema import Rewound

CONTROLLER = "controller"
SLICES, LOADS, FINISHED = 1, 2, 3
"""Threads of a process: its activities, its loads of weights, its finished groups."""
THREADS = {SLICES: "activity", LOADS: "loads", FINISHED: "finished groups"}
FIRST_SLOT = 100
"""Threads from here on are slots in use: a completion takes the first free one."""
TRAINER_COUNTERS = ("reward", "staleness_mean", "entropy", "effective_sample_size", "grad_norm")
LEFT_OUT = ("unknown", "starting")
TraceEvent = dict[str, Any]


def write_trace(directory: Path, out: Path, *, begin: float = -math.inf, end: float = math.inf) -> int:
    """Write the trace of a window of the run's clock; returns the number of events."""
    with RunReader(directory) as reader:
        trace = make_trace(reader, begin=begin, end=end)
    try:
        out.write_bytes(msgspec.json.encode(trace))
    except OSError as error:
        why = error.strerror or error
        raise FreerunError(f'"{out}" cannot be written ({why}); name another with --out FILE') from error
    return len(trace["traceEvents"])


def make_trace(reader: RunReader, *, begin: float, end: float) -> dict[str, Any]:
    """The contents of the file for this window."""
    events = trace_events(reader, begin=begin, end=end)
    facts = {"run": reader.status().name, "made_by": "freerun trace"}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def trace_events(reader: RunReader, *, begin: float = -math.inf, end: float = math.inf) -> list[TraceEvent]:
    """All events of the trace, ordered by time; the names of tracks first."""
    trace = _Trace(begin, end)
    occupation = Occupation()
    for event in reader.events():
        occupation(event)
        trace.take(event)
    trace.draw_activities(occupation)
    trace.draw_slots()
    trace.draw_arrows(reader.trained_groups())
    return trace.finished()


class _Trace:
    """A trace under construction."""

    def __init__(self, begin: float, end: float) -> None:
        self._window = (begin, end)
        self._events: list[TraceEvent] = []
        self._pids: dict[str, int] = {}
        self._threads: set[tuple[int, int]] = set()
        self._steps: dict[int, tuple[int, int]] = {}
        """Begin and end of each drawn step in microseconds, by version."""
        self._groups: dict[int, int] = {}
        """When each group was finished, by ordinal."""
        self._loads: list[tuple[int, str, int]] = []
        """(version, worker, begin) of each load."""
        self._uses: list[tuple[float, float, str, str]] = []
        """(begin, end, worker, name) of each use of a slot."""

    def take(self, event: Any) -> None:
        match event:
            case StepFinished():
                self._step(event)
            case GroupFinished():
                self._group(event)
            case EngineLoaded():
                self._load(event)
            case WeightsLoaded():
                self._instant(CONTROLLER, f"version {event.version} confirmed by all engines", event.seconds)
            case EngineReport():
                stats = event.stats
                running = {"running": stats.num_running, "evaluating": stats.num_evaluating}
                self._counter(event.worker, "sequences", event.seconds, running)
                self._counter(event.worker, "cache tokens", event.seconds, {"used": stats.cache_tokens_used})
            case Queues():
                counts = event.counts
                groups = {"running": counts.num_running, "ready": counts.num_ready}
                self._counter(CONTROLLER, "groups", event.seconds, groups)
                self._counter(CONTROLLER, "gate", event.seconds, {"samples that may start": counts.gate_capacity})
            case EvalFinished():
                facts = {"accuracy": event.accuracy, "low": event.accuracy_low, "high": event.accuracy_high}
                self._instant(CONTROLLER, f"evaluation of version {event.version}", event.seconds, facts)
            case WorkerDied():
                self._instant(event.worker, f"{event.worker} died", event.seconds, {"reason": event.reason})
            case _ if text := _moment(event):
                self._instant(CONTROLLER, text, event.seconds)

    def draw_activities(self, occupation: Occupation) -> None:
        """Draw what each process did; adjacent slices of the same kind are merged."""
        for worker, stretches in occupation.stretches.items():
            drawn: list[tuple[str, float, float]] = []
            for what, begin, end in (part for stretch in stretches for part in stretch.laid_out):
                if drawn and drawn[-1][0] == what and drawn[-1][2] == begin and worker != TRAINER:
                    drawn[-1] = (what, drawn[-1][1], end)
                else:
                    drawn.append((what, begin, end))
            for what, begin, end in drawn:
                if what not in LEFT_OUT:
                    self._slice(worker, SLICES, what, begin, end)

    def draw_slots(self) -> None:
        """Draw completions while they had a slot, in as few threads as an engine had slots in use."""
        free_at: dict[str, list[float]] = {}
        for begin, end, worker, name in sorted(self._uses):
            slots = free_at.setdefault(worker, [])
            slot = next((i for i, free in enumerate(slots) if free <= begin), len(slots))
            slots[slot : slot + 1] = [end]
            self._slice(worker, FIRST_SLOT + slot, name, begin, end)

    def draw_arrows(self, trained: Iterable[tuple[int, int, int]]) -> None:
        """Draw arrows from steps to loads and from groups to steps, where both ends are drawn."""
        numbers = count(1)
        for version, worker, begin in self._loads:
            if version in self._steps and (ended := self._steps[version][1]) <= begin:
                at = max(self._steps[version][0], ended - 1)
                self._arrow(next(numbers), "weights", (TRAINER, SLICES, at), (worker, LOADS, begin))
        for version, ordinal, num_sequences in trained:
            if version in self._steps and ordinal in self._groups:
                start, finish = self._groups[ordinal], self._steps[version][0]
                if start <= finish:
                    facts = {"sequences": num_sequences}
                    ends = (CONTROLLER, FINISHED, start), (TRAINER, SLICES, finish)
                    self._arrow(next(numbers), "group", *ends, facts)

    def finished(self) -> list[TraceEvent]:
        """The sorted events: an enclosing slice comes before the slices and arrows that start in it."""
        rank = {"X": 0, "b": 0, "s": 2, "f": 2, "e": 3}
        self._events.sort(key=lambda e: (e["ts"], rank.get(e["ph"], 1), -e.get("dur", 0)))
        return [*self._names(), *self._events]

    def _names(self) -> Iterator[TraceEvent]:
        order = sorted(self._pids, key=lambda worker: (worker == CONTROLLER, worker != TRAINER, worker))
        for place, worker in enumerate(order):
            pid = self._pids[worker]
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": worker}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": place}}
        for pid, tid in sorted(self._threads):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": _thread(tid)}}

    def _step(self, event: StepFinished) -> None:
        version, metrics = event.result.version, event.result.metrics
        begin = event.seconds - event.step_seconds
        ages = {f"staleness {age}": n for age, n in sorted(event.result.staleness_counts.items())}
        if self._slice(TRAINER, SLICES, f"step {version}", begin, event.seconds, {**metrics, **ages}):
            self._steps[version] = (_micros(begin), _micros(event.seconds))
        self._counter(TRAINER, "version", event.seconds, {"version": version})
        for name in TRAINER_COUNTERS:
            if math.isfinite(metrics.get(name, math.nan)):
                self._counter(TRAINER, name, event.seconds, {name: metrics[name]})

    def _group(self, event: GroupFinished) -> None:
        facts: TraceEvent = {"tokens": event.num_tokens, "reward": event.mean_reward, "reason": event.reason}
        facts["interrupts"] = event.num_interrupts
        name = f"group {event.ordinal} {event.outcome}"
        if self._slice(CONTROLLER, FINISHED, name, event.seconds, event.seconds + 1e-6, facts):
            self._groups[event.ordinal] = _micros(event.seconds)
        if event.started is None or not self._is_shown(event.started, event.seconds):
            return
        worker, number = event.worker or CONTROLLER, event.ordinal
        self._uses += [(begin, end, worker, f"group {number}") for begin, end in event.slots]
        self._async(worker, number, f"group {number}", event.started, event.seconds, facts)
        sampled = event.seconds if event.sampled is None else event.sampled
        self._async(worker, number, "sampling", event.started, min(sampled, event.seconds))
        if event.sampled is not None and event.graded is not None:
            self._async(worker, number, "grading", event.sampled, min(event.graded, event.seconds))

    def _load(self, event: EngineLoaded) -> None:
        begin = event.seconds - event.load_seconds
        facts = {"interrupts": event.num_interrupts}
        if self._slice(event.worker, LOADS, f"load version {event.version}", begin, event.seconds, facts):
            self._loads.append((event.version, event.worker, _micros(begin)))

    # ---- the format -----------------------------------------------------------------------------

    def _is_shown(self, begin: float, end: float) -> bool:
        return begin <= self._window[1] and end >= self._window[0]

    def _pid(self, worker: str) -> int:
        return self._pids.setdefault(worker, len(self._pids) + 1)

    def _add(self, ph: str, worker: str, tid: int, name: str, ts: int, **more: Any) -> None:
        self._events.append({"ph": ph, "name": name, "pid": self._pid(worker), "tid": tid, "ts": ts, **more})

    def _slice(
        self, worker: str, tid: int, name: str, begin: float, end: float, facts: TraceEvent | None = None
    ) -> bool:
        """Add a slice to a thread, if it overlaps the window; returns whether it did."""
        if end < begin or not self._is_shown(begin, end):
            return False
        self._threads.add((self._pid(worker), tid))
        start = _micros(begin)
        self._add("X", worker, tid, name, start, dur=_micros(end) - start, cat="activity", args=facts or {})
        return True

    def _async(
        self, worker: str, number: int, name: str, begin: float, end: float, facts: TraceEvent | None = None
    ) -> None:
        """Add a slice that may overlap others, such as a group."""
        for ph, seconds in (("b", begin), ("e", max(begin, end))):
            self._add(ph, worker, SLICES, name, _micros(seconds), cat="group", id=number, args=facts or {})

    def _counter(self, worker: str, name: str, seconds: float, values: TraceEvent) -> None:
        if self._is_shown(seconds, seconds):
            self._add("C", worker, 0, name, _micros(seconds), args=values)

    def _instant(self, worker: str, name: str, seconds: float, facts: TraceEvent | None = None) -> None:
        if self._is_shown(seconds, seconds):
            self._threads.add((self._pid(worker), SLICES))
            self._add("i", worker, SLICES, name, _micros(seconds), s="p", args=facts or {})

    def _arrow(
        self,
        number: int,
        kind: str,
        start: tuple[str, int, int],
        finish: tuple[str, int, int],
        facts: TraceEvent | None = None,
    ) -> None:
        common = {"cat": kind, "id": number, "args": facts or {}}
        self._add("s", start[0], start[1], kind, start[2], **common)
        self._add("f", finish[0], finish[1], kind, finish[2], bp="e", **common)


def _thread(tid: int) -> str:
    return THREADS.get(tid, f"slot {tid - FIRST_SLOT}")


def _moment(event: Any) -> str:
    """The name of an event that concerns the whole run; empty for other events."""
    match event:
        case CheckpointSaved():
            return f"checkpoint {event.version}"
        case EvalSkipped():
            return f"evaluation of version {event.version} skipped: {event.reason}"
        case RunStarted():
            return "started" if event.version == 0 else f"resumed at version {event.version}"
        case RunFinished():
            return event.outcome
        case Rewound():
            return f"rewound to version {event.version}"
        case CoresMoved():
            return f"the trainer has {len(event.cores)} cores, {event.num_borrowed} borrowed"
    return ""


def _micros(seconds: float) -> int:
    return max(0, round(1e6 * seconds))
