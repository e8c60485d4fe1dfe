"""Reads a run's store: for the command line, reports and programs.

The file is opened read-only and may be read while the run writes it. Whether a run is still alive is decided
here, since a killed process cannot record its end.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from freerun.events.deadline import heed_deadline, unreadable
from freerun.events.events import (
    MAX_EXCERPT,
    AnyEvent,
    EvalRow,
    PromptResult,
    Provenance,
    RecentCompletion,
    RunOutcome,
    SftStep,
    WeightsLoaded,
)
from freerun.events.metrics import NUM_RECENT, RunState
from freerun.events.schema import (
    DAMAGE,
    EVAL_COMPLETIONS,
    EVAL_PROMPTS,
    EVALS,
    LOST_GROUPS,
    STEPS,
    STORES_OF_RUNS,
    TABLES,
    TRAJECTORIES,
    EvalCompletionRow,
    LostRow,
    Rewound,
    StepRow,
    StoreError,
    TrajectoryRow,
    check_schema,
    damaged,
    is_alive,
    store_file,
)
from freerun.events.selection import (
    NUM_PARTS_EXPECTED,
    SampleQuery,
    Selection,
    can_use_step_maxima,
    eval_query,
    largest_log_weight,
    lost_query,
    query_of,
    trained_query,
)
from freerun.events.table import R, Table, checksum
from freerun.types import decoder_for

RunStatus = RunOutcome | Literal["running", "crashed"]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line about a run."""

    name: str
    state: RunStatus
    version: int
    num_steps: int
    """Number of steps that the run was asked for."""
    reward: float | None
    """Mean reward of the last step."""
    accuracy: float | None
    """Held-out accuracy of the last evaluation."""
    updated: float
    """Unix time of the last commit."""
    reason: str = ""
    """Why the run failed or cannot be read."""
    sft_step: int | None = None
    """Supervised steps done, if the run has done nothing else."""
    num_sft_steps: int = 0


_decode_event: msgspec.msgpack.Decoder[AnyEvent | Rewound] = decoder_for(AnyEvent | Rewound)


class RunReader:
    """One connection to a store; close it, or use it in a `with`. Not to be shared between threads."""

    def __init__(self, path: str | Path) -> None:
        self.file = store_file(Path(path))
        if not self.file.is_file():
            raise StoreError(f"no run at {path}: {self.file} does not exist")
        try:
            self._db = sqlite3.connect(f"file:{quote(str(self.file.absolute()))}?mode=ro", uri=True)
            self._db.row_factory = sqlite3.Row
            self._db.create_function("largest_log_weight", 1, largest_log_weight, deterministic=True)
            heed_deadline(self._db)
            check_schema(self._db, self.file)
        except DAMAGE as error:
            self.close()
            raise unreadable(self.file, error) from error
        except StoreError:
            self.close()
            raise

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()

    def steps(self, after: int = 0) -> list[StepRow]:
        """Steps that produced a version greater than `after`, in order."""
        return self._read(STEPS, "WHERE version > ? ORDER BY version", after)

    def last_step(self) -> StepRow | None:
        """The newest step, or None before the first."""
        rows = self.steps(after=self._number_of("SELECT coalesce(max(version), 0) - 1 FROM steps"))
        return rows[-1] if rows else None

    def evals(self) -> list[EvalRow]:
        """Evaluations by version."""
        return self._read(EVALS, "ORDER BY version")

    def eval_prompts(self, version: int) -> list[PromptResult]:
        """The result of each prompt in the evaluation of `version`, in order."""
        return self._read(EVAL_PROMPTS, "WHERE version = ? ORDER BY abs(ordinal)", version)

    def eval_completions(self, version: int) -> list[EvalCompletionRow]:
        """The completions of the evaluation of `version` that were kept."""
        return self._read(EVAL_COMPLETIONS, "WHERE version = ? ORDER BY abs(ordinal), sample, part", version)

    def trajectories(self, version: int) -> list[TrajectoryRow]:
        """The batch consumed by the step to `version`, in its order."""
        return self._read(TRAJECTORIES, "WHERE version = ? ORDER BY rowid", version)

    def group(self, version: int, ordinal: int) -> list[TrajectoryRow]:
        """The trajectories of group `ordinal` that the step to `version` consumed."""
        return self._read(TRAJECTORIES, "WHERE ordinal = ? AND +version = ? ORDER BY rowid", ordinal, version)

    def containing(self, text: str, *, limit: int) -> list[TrajectoryRow]:
        """Trajectories whose completion contains `text`, the newest first."""
        escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        which = "WHERE completion LIKE ? ESCAPE '\\' ORDER BY version DESC, rowid LIMIT ?"
        return self._read(TRAJECTORIES, which, f"%{escaped}%", limit)

    def lost(self) -> list[LostRow]:
        """Samples that were not trained on, oldest first: the newest groups of each outcome."""
        return self._read(LOST_GROUPS, "ORDER BY event, sample, part")

    def samples(self, selection: Selection) -> list[tuple[TrajectoryRow, ...]]:
        """Trained samples, each with all its parts; fast on stores of any size."""
        steps = self._steps_of_largest_weight(selection.limit) if can_use_step_maxima(selection) else ()
        return self._samples(TRAJECTORIES, trained_query(selection, steps), selection.limit)

    def eval_samples(self, version: int, selection: Selection) -> list[tuple[EvalCompletionRow, ...]]:
        """The kept samples of the evaluation of `version`."""
        return self._samples(EVAL_COMPLETIONS, eval_query(selection, version), selection.limit)

    def lost_samples(self, selection: Selection) -> list[tuple[LostRow, ...]]:
        """Samples that were not trained on, newest first."""
        return self._samples(LOST_GROUPS, lost_query(selection), selection.limit)

    def num_samples(self, selection: Selection, *, eval_version: int | None = None) -> int:
        """How many samples there are without the limit: of an evaluation, lost ones, or trained ones."""
        query = query_of(selection, eval_version)
        return self._number_of(query.count, *query.values)

    def step_range(self) -> tuple[int, int] | None:
        """The first and the last recorded step; None before the first."""
        first, last = next(self._rows("SELECT min(version), max(version) FROM steps"))
        return None if first is None else (first, last)

    def step(self, version: int) -> StepRow | None:
        """The step to `version`, if it was recorded."""
        rows = self._read(STEPS, "WHERE version = ?", version)
        return rows[0] if rows else None

    def provenance(self) -> list[Provenance]:
        """The provenance of each session of the run, in order."""
        names = [field.name for field in msgspec.structs.fields(Provenance)]
        rows = list(self._rows(f"SELECT {', '.join(names)} FROM sessions ORDER BY session"))
        with self._readable():
            return [msgspec.convert(dict(row), Provenance) for row in rows]

    def trained_ordinals(self) -> list[int]:
        """One ordinal per trained group and step, in order; exactly once means that none occurs twice."""
        rows = self._rows(
            "SELECT ordinal FROM trajectories GROUP BY version, ordinal ORDER BY version, min(rowid)"
        )
        return [row[0] for row in rows]

    def trained_groups(self) -> list[tuple[int, int, int]]:
        """(version of the step, ordinal, number of sequences) of each trained group, in order."""
        rows = self._rows(
            "SELECT version, ordinal, count(*) FROM trajectories GROUP BY version, ordinal "
            "ORDER BY version, min(rowid)"
        )
        return [(row[0], row[1], row[2]) for row in rows]

    def events(self, *kinds: str) -> Iterator[AnyEvent | Rewound]:
        """Recorded events in order, of all or some kinds; steps come without their batches."""
        for _, event in self.numbered_events(*kinds):
            yield event

    def numbered_events(
        self, *kinds: str, after: int = 0, begin: float = -math.inf, end: float = math.inf, holding: bytes = b""
    ) -> Iterator[tuple[int, AnyEvent | Rewound]]:
        """Events with their ids: in a window of the run's clock, with ids above `after`, and with these bytes."""
        marks = ", ".join("?" * len(kinds))
        where = f"kind IN ({marks}) AND" if kinds else ""
        query = (
            f"SELECT * FROM events WHERE {where} id > ? AND seconds BETWEEN ? AND ? AND instr(body, ?) ORDER BY id"
        )
        for row in self._rows(query, *kinds, after, begin, end, holding):
            with self._readable():
                event = _decode_event.decode(row["body"])
            yield row["id"], event

    def weights_loaded(self) -> list[WeightsLoaded]:
        """The versions that engines loaded, with checksums; a resumed run loads its first version again."""
        return [event for event in self.events("weights_loaded") if isinstance(event, WeightsLoaded)]

    def latest_second(self, *, after: int) -> float:
        """The run's clock at the latest event after an id; 0 if there is none."""
        query = "SELECT coalesce(max(seconds), 0.0) FROM events INDEXED BY events_by_kind WHERE id > ?"
        return float(next(self._rows(query, after))[0])

    def last_event_id(self) -> int:
        """The id of the newest event; 0 before the first."""
        return self._number_of("SELECT coalesce(max(id), 0) FROM events")

    def last_kind(self) -> str:
        """The kind of the newest event; empty before the first."""
        return next((str(row[0]) for row in self._rows("SELECT kind FROM events ORDER BY id DESC LIMIT 1")), "")

    def event_kinds(self, after: int) -> list[str]:
        """The kinds of the events after an id, in order, without decoding the events."""
        return [row[0] for row in self._rows("SELECT kind FROM events WHERE id > ? ORDER BY id", after)]

    def data_version(self) -> int:
        """A number that changes whenever another process has committed; cheap to query."""
        return self._number_of("PRAGMA data_version")

    def verify(self) -> None:
        """Read everything, structure and rows; raises on any damage."""
        [*complaints] = self._rows("PRAGMA integrity_check(1)")
        if complaints[0][0] != "ok":
            raise damaged(self.file, complaints[0][0])
        for table in TABLES:
            for _ in self._rows(f"SELECT * FROM {table.name}"):
                pass  # reading compares each row with its checksum

    def show_batch(self, state: RunState, version: int) -> None:
        """Add this step's completions to the recent ones of a state made from recorded events."""
        query = (
            "SELECT ordinal FROM trajectories WHERE version = ? GROUP BY ordinal ORDER BY min(rowid) DESC LIMIT ?"
        )
        for [ordinal] in reversed(list(self._rows(query, version, NUM_RECENT))):
            first_parts = self._read(TRAJECTORIES, "WHERE ordinal = ? AND part = 0 ORDER BY sample", ordinal)
            row = first_parts[version % len(first_parts)]
            shown = RecentCompletion(
                prompt=row.prompt[-MAX_EXCERPT:], completion=row.completion[:MAX_EXCERPT], reward=row.reward,
                is_correct=row.is_correct,
            )  # fmt: skip
            state.show(shown, ordinal)

    def num_steps_to(self, version: int) -> int:
        """Recorded steps up to `version`."""
        return self._number_of("SELECT count(*) FROM steps WHERE version BETWEEN 1 AND ?", version)

    def status(self) -> RunSummary:
        """The run and its progress."""
        rows = list(self._rows("SELECT * FROM sessions ORDER BY session DESC LIMIT 1"))
        if not rows:
            raise StoreError(f"store {self.file} holds no run; it was not made by freerun train")
        with self._readable():
            summary = self._summarise(rows[0])
            return msgspec.convert(msgspec.structs.asdict(summary), RunSummary)  # a session's row has no checksum

    def _summarise(self, session: sqlite3.Row) -> RunSummary:
        last, evals = self.last_step(), self.evals()
        sft = self._last_sft_step() if last is None else None
        is_crashed = session["state"] == "running" and not is_alive(session["pid"], session["pid_created"])
        return RunSummary(
            name=self.file.absolute().parent.name,
            state="crashed" if is_crashed else session["state"],
            version=last.version if last else session["start_version"],
            num_steps=session["num_steps"],
            reward=_finite(last.metrics.get("reward")) if last else None,
            accuracy=_finite(evals[-1].accuracy) if evals else None,
            updated=session["updated"],
            reason=f"process {session['pid']} is gone" if is_crashed else session["reason"],
            sft_step=sft.step if sft else None,
            num_sft_steps=sft.num_steps if sft else 0,
        )

    def _last_sft_step(self) -> SftStep | None:
        for row in self._rows("SELECT * FROM events WHERE kind = 'sft_step' ORDER BY id DESC LIMIT 1"):
            event = _decode_event.decode(row["body"])
            return event if isinstance(event, SftStep) else None
        return None

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Make a snapshot: every query inside sees the store as of the first one."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def plain_rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Rows as tuples, not compared with their checksums: for reading many rows."""
        cursor = self._db.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(query, values).fetchall()
        except DAMAGE as error:
            raise unreadable(self.file, error) from error

    def _rows(self, query: str, *values: object) -> Iterator[sqlite3.Row]:
        """Rows as they were written; rows with a checksum are compared with it."""
        try:
            for row in self._db.execute(query, values):
                names = row.keys()
                if "checksum" in names and row["checksum"] != checksum(dict(row)):
                    key = ", ".join(
                        f"{name} {row[name]}" for name in ("version", "ordinal", "id") if name in names
                    )
                    raise damaged(self.file, f"a row does not match its checksum ({key})")
                yield row
        except DAMAGE as error:
            raise unreadable(self.file, error) from error

    def _read(self, table: Table[R], which: str, *values: object) -> list[R]:
        with self._readable():
            return [table.read(row) for row in self._rows(f"SELECT * FROM {table.name} {which}", *values)]

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raise `StoreError` if something cannot be decoded: damage, or a store of another freerun version."""
        try:
            yield
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError, OverflowError) as error:
            raise damaged(self.file, f"{type(error).__name__}: {error}") from error

    def _steps_of_largest_weight(self, number: int) -> list[int]:
        maxima = {step.version: step.metrics.get("behaviour_weight_max") for step in self.steps()}
        known = {version: weight for version, weight in maxima.items() if weight is not None}
        return sorted(known, key=known.__getitem__, reverse=True)[:number]

    def _samples(self, table: Table[R], query: SampleQuery, limit: int) -> list[tuple[R, ...]]:
        """First query the keys, in an order that may need the whole table; then only the rows with these keys."""
        num_rows = NUM_PARTS_EXPECTED * limit
        while True:
            rows = list(self._rows(f"{query.keys} LIMIT ?", *query.values, num_rows))
            keys = list(dict.fromkeys(tuple(row) for row in rows))[:limit]
            if len(keys) == limit or len(rows) < num_rows:
                return [tuple(self._read(table, query.parts, *key)) for key in keys]
            num_rows *= 4

    def _number_of(self, query: str, *values: object) -> int:
        return int(next(self._rows(query, *values))[0])


def list_runs(directory: Path) -> list[RunSummary]:
    """Every run in a directory, most recently written first; a store that cannot be read is a crashed run."""
    files = directory.glob(STORES_OF_RUNS) if directory.is_dir() else []
    return sorted((_summarise(file) for file in files), key=lambda run: run.updated, reverse=True)


def _summarise(file: Path) -> RunSummary:
    try:
        with closing(RunReader(file)) as reader:
            return reader.status()
    except StoreError as error:
        return RunSummary(
            name=file.parent.name, state="crashed", version=0, num_steps=0, reward=None, accuracy=None,
            updated=file.stat().st_mtime if file.exists() else 0.0, reason=str(error),
        )  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
