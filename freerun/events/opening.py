"""Opens the state of a recorded run without reading all of its events.

Most events are superseded: a report by the next one of the same process, queue counts by newer ones. Of groups
that went into the buffer only the number is kept. So a run of a million trajectories opens in a fraction of a
second, with the same state as after replaying every event. The steps to examine are given: between two of them,
only the newest of the superseded events are read. Also kept are

    what the state keeps of the past     the last `KEEP_SECONDS` of each process, tokens at the last steps
    the first report of each engine      its totals begin there; it gives the order of the engines
    reports around a new process         its counters begin again at 0

Everything after the last examined step is read. Events that are read are compared with their checksums;
superseded or counted events are not (`RunReader.verify` does that).
"""

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from freerun.events.engine_track import NUM_MARKS
from freerun.events.events import AnyEvent, StepFinished
from freerun.events.metrics import KEEP_SECONDS, RunState
from freerun.events.reader import RunReader
from freerun.events.schema import Rewound, damaged
from freerun.types import decoder_for, encode

T = TypeVar("T")
_OVERTAKEN = ("activity", "engine_loaded", "engine_report", "process_report", "queues")
_OF_A_WORKER = ("activity", "engine_loaded", "engine_report")
# No text in an event contains these bytes: in UTF-8 the byte after the first word cannot occur there.
_BUFFERED = encode("outcome") + encode("buffered")
_NO_EXCERPT = encode("excerpt") + encode(None)
_ONLY_COUNTS = f"instr(body, :buffered) AND substr(body, -{len(_NO_EXCERPT)}) = :no_excerpt"
_READ = (
    "SELECT id, kind, seconds, version, body, checksum FROM events NOT INDEXED "
    f"WHERE kind != 'group_finished' OR id > :last OR NOT ({_ONLY_COUNTS}) ORDER BY id"
)
_COUNT = "SELECT count(*) FROM events NOT INDEXED WHERE id > :after AND id <= :last AND kind = 'group_finished'"
_LAST_STEP = "SELECT coalesce(max(id), 0) FROM events WHERE kind = 'step_finished'"


class _Row(NamedTuple):
    id: int
    kind: str
    seconds: float
    version: int | None
    body: bytes
    checksum: int


class _Counters(msgspec.Struct, frozen=True):
    num_steps: int
    version: int | None


class _Said(msgspec.Struct, frozen=True):
    """The part of a worker's event that decides whether it is read in full."""

    worker: str
    stats: _Counters | None = None


_decode_said: Callable[[bytes], _Said] = decoder_for(_Said).decode
_decode_event: Callable[[bytes], AnyEvent | Rewound] = decoder_for(AnyEvent | Rewound).decode


class OpenedRun(NamedTuple):
    state: RunState
    last_id: int
    """Id of the newest event in the state; 0 if there is none."""


def open_state(
    reader: RunReader,
    *,
    examined: Callable[[int], range] = lambda num_steps: range(0),
    look: Callable[[RunState, StepFinished], None] = lambda state, event: None,
) -> OpenedRun:
    """The state after all events. `look` is called with it after the steps that `examined` selects by index."""
    with reader.unchanged():
        [[last_step]] = reader.plain_rows(_LAST_STEP)
        found = reader.plain_rows(_READ, buffered=_BUFFERED, no_excerpt=_NO_EXCERPT, last=last_step)
        rows = list(map(_Row._make, found))
        steps = [row.id for row in rows if row.kind == "step_finished"]
        starts = [row.id for row in rows if row.kind == "run_started"]
        looks = {steps[i] for i in examined(len(steps))}
        kept = _kept(reader, rows, looks.union(steps[-NUM_MARKS - 1 :], starts), last_step)
        state, counted, num_read = RunState(), 0, 0
        for row in kept:
            event = _decoded(reader, row)
            num_read += row.kind == "group_finished"
            if row.id in looks or row.id == last_step:
                [[number]] = reader.plain_rows(_COUNT, after=counted, last=row.id)
                if number > num_read:
                    state.groups["buffered"] += number - num_read
                counted, num_read = row.id, 0
            state(event)
            if row.id in looks and isinstance(event, StepFinished):
                look(state, event)
        started = max(starts, default=0)
        state.seconds = max(state.seconds, reader.latest_second(after=started - 1))
        return OpenedRun(state, reader.last_event_id())


def recorded_state(reader: RunReader) -> RunState:
    """The state of the run after all recorded events, with the completions of its newest step."""
    state = open_state(reader).state
    if (newest := reader.step_range()) is not None:
        reader.show_batch(state, newest[1])
    return state


def _kept(reader: RunReader, rows: list[_Row], marks: set[int], after_last: int) -> list[_Row]:
    """The rows whose events are not superseded before the next mark, and those that the state keeps longer."""
    said = {row.id: _as(_decode_said, reader, row.body) for row in rows if row.kind in _OF_A_WORKER}
    kept = {row.id: row for row in _recent(rows, said)}
    newest: dict[tuple[str, str], _Row] = {}
    before: dict[tuple[str, str], _Row] = {}
    has_version: set[str] = set()
    for row in rows:
        if row.kind not in _OVERTAKEN or row.id > after_last:
            kept[row.id] = row
            if row.id in marks:
                kept |= {waiting.id: waiting for waiting in newest.values()}
                newest.clear()
            continue
        of = said.get(row.id)
        key = row.kind, of.worker if of else ""
        if of is not None and of.stats is not None:
            last = before.get(key)
            told = said[last.id].stats if last else None
            if told is not None and last is not None and of.stats.num_steps < told.num_steps:
                kept |= {last.id: last, row.id: row}
            if of.stats.version is not None and of.worker not in has_version:
                has_version.add(of.worker)
                kept[row.id] = row
        if key not in before:
            kept[row.id] = row
        newest[key] = before[key] = row
    return sorted((kept | {row.id: row for row in newest.values()}).values())


def _recent(rows: list[_Row], said: dict[int, _Said]) -> Iterator[_Row]:
    """Each worker's reports of the last minutes, and its last report before them."""
    told = [(row, said[row.id].worker) for row in rows if row.kind in ("activity", "engine_report")]
    ends = {worker: row.seconds for row, worker in told}
    ends |= {worker: row.seconds for row, worker in told if row.kind == "engine_report"}
    is_past: set[tuple[str, str]] = set()
    for row, worker in reversed(told):
        if (row.kind, worker) not in is_past:
            yield row
            if row.seconds < ends[worker] - KEEP_SECONDS:
                is_past.add((row.kind, worker))


def _decoded(reader: RunReader, row: _Row) -> AnyEvent | Rewound:
    """The event as it was written."""
    version = None if row.version is None else float(row.version)
    if zlib.crc32(encode([row.body, row.kind, row.seconds, version])) != row.checksum:
        raise damaged(reader.file, f"a row does not match its checksum (id {row.id})")
    return _as(_decode_event, reader, row.body)


def _as(decode: Callable[[bytes], T], reader: RunReader, body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise damaged(reader.file, f"{type(error).__name__}: {error}") from error
