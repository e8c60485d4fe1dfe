"""Reading a run's store, for everybody but its writer: the command line, reports, tests.

Read-only by the file's own mode; a run may be written while it is read. Whether a run still lives is judged
here and not by what it says: a process that was killed could not write that it ended.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from freerun.events.events import AnyEvent, ProblemResult
from freerun.events.schema import (
    CHECKED_TABLES,
    DAMAGE,
    STORE_NAME,
    Rewound,
    StoreError,
    check_schema,
    checksum,
    damaged,
    is_alive,
    store_file,
)
from freerun.types import FinishReason, Floats, Ints, Span, decoder_for

T = TypeVar("T")
State = Literal["running", "finished", "interrupted", "failed", "crashed"]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line about a run."""

    name: str
    state: State
    version: int
    num_steps: int
    """Steps the run was asked for."""
    reward: float | None
    """Mean reward of the last step."""
    accuracy: float | None
    """Held-out accuracy of the last evaluation."""
    updated: float
    """Unix time of the last commit."""
    reason: str = ""
    """Why it failed or cannot be read."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded step."""

    version: int
    seconds: float
    step_seconds: float
    wait_seconds: float
    staleness_counts: dict[int, int]
    metrics: dict[str, float]


class EvalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded evaluation."""

    version: int
    """The version that sampled all of it."""
    seconds: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    num_prompts: int
    num_samples: int
    num_failed: int
    mean_length: float


class TrajectoryRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded trajectory, as it was trained on."""

    version: int
    """Of the step that consumed it."""
    ordinal: int
    sample: int
    key: str
    prompt: str
    answer: str
    completion: str
    reward: float
    is_correct: bool
    finish_reason: FinishReason
    staleness: int
    prompt_token_ids: Ints
    token_ids: Ints
    logprobs: Floats
    spans: tuple[Span, ...]
    reward_parts: dict[str, float]
    """What each part of a summed reward was worth before its weight; empty for a reward of one part."""


class EvalCompletionRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded completion of an evaluation."""

    version: int
    ordinal: int
    sample: int
    key: str
    prompt: str
    answer: str
    completion: str
    reward: float
    is_correct: bool
    finish_reason: FinishReason
    token_ids: Ints


_decode_event: msgspec.msgpack.Decoder[AnyEvent | Rewound] = decoder_for(AnyEvent | Rewound)
_decode_spans = msgspec.json.Decoder(tuple[Span, ...])
_decode_parts = msgspec.json.Decoder(dict[str, float])
_decode_counts = msgspec.json.Decoder(dict[int, int])


class RunReader:
    """One connection to a store; close it, or use it in a `with`. Not to be shared between threads."""

    def __init__(self, path: str | Path) -> None:
        self.file = store_file(Path(path))
        if not self.file.is_file():
            raise StoreError(f"no run at {path}: {self.file} does not exist")
        try:
            self._db = sqlite3.connect(f"file:{quote(str(self.file.absolute()))}?mode=ro", uri=True)
            self._db.row_factory = sqlite3.Row
            check_schema(self._db, self.file)
        except DAMAGE as error:
            self.close()
            raise StoreError(f"store {self.file} cannot be read: {error}") from error
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
        metrics: dict[int, dict[str, float]] = {}
        for row in self._rows("SELECT * FROM metrics WHERE version > ?", after):
            metrics.setdefault(row["version"], {})[row["name"]] = _number(row["value"])

        def make(row: sqlite3.Row) -> StepRow:
            return _step_row(row, metrics.get(row["version"], {}))

        return self._read(make, "SELECT * FROM steps WHERE version > ? ORDER BY version", after)

    def last_step(self) -> StepRow | None:
        """The newest step, or None before the first."""
        rows = self.steps(after=self._number_of("SELECT coalesce(max(version), 0) - 1 FROM steps"))
        return rows[-1] if rows else None

    def evals(self) -> list[EvalRow]:
        """Evaluations by version."""
        return self._read(_eval_row, "SELECT * FROM evals ORDER BY version")

    def eval_problems(self, version: int) -> list[ProblemResult]:
        """What came of each problem in the evaluation of `version`, in the order they were asked."""
        query = "SELECT * FROM eval_problems WHERE version = ? ORDER BY abs(ordinal)"
        return self._read(_problem_row, query, version)

    def eval_completions(self, version: int) -> list[EvalCompletionRow]:
        """The completions of the evaluation of `version`; only `freerun eval` keeps them."""
        query = "SELECT * FROM eval_completions WHERE version = ? ORDER BY abs(ordinal), sample"
        return self._read(_eval_completion_row, query, version)

    def trajectories(self, version: int) -> list[TrajectoryRow]:
        """The batch that the step to `version` consumed, in the order it was given."""
        query = "SELECT * FROM trajectories WHERE version = ? ORDER BY rowid"
        return self._read(_trajectory_row, query, version)

    def trained_ordinals(self) -> list[int]:
        """One ordinal per group and step that trained on it, in order: exactly once means no ordinal twice."""
        rows = self._rows(
            "SELECT ordinal FROM trajectories GROUP BY version, ordinal ORDER BY version, min(rowid)"
        )
        return [row[0] for row in rows]

    def events(self, *kinds: str) -> Iterator[AnyEvent | Rewound]:
        """Recorded events in order, all or those of some kinds; steps come without their batches."""
        marks = ", ".join("?" * len(kinds))
        where = f"WHERE kind IN ({marks})" if kinds else ""
        for row in self._rows(f"SELECT * FROM events {where} ORDER BY id", *kinds):
            with self._readable():
                event = _decode_event.decode(row["body"])
            yield event

    def verify(self) -> None:
        """Read all of it, structure and rows; raises if anything is not what was written."""
        [*problems] = self._rows("PRAGMA integrity_check(1)")
        if problems[0][0] != "ok":
            raise damaged(self.file, problems[0][0])
        for table in CHECKED_TABLES:
            for _ in self._rows(f"SELECT * FROM {table}"):
                pass  # each is compared with its checksum

    def num_steps_to(self, version: int) -> int:
        """Recorded steps up to `version`."""
        return self._number_of("SELECT count(*) FROM steps WHERE version BETWEEN 1 AND ?", version)

    def status(self) -> RunSummary:
        """What the run is and where it stands."""
        rows = list(self._rows("SELECT * FROM sessions ORDER BY session DESC LIMIT 1"))
        if not rows:
            raise StoreError(f"store {self.file} holds no run; it was not made by freerun train")
        with self._readable():
            summary = self._summarise(rows[0])
            return msgspec.convert(msgspec.structs.asdict(summary), RunSummary)  # its session has no checksum

    def _summarise(self, session: sqlite3.Row) -> RunSummary:
        last, evals = self.last_step(), self.evals()
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
        )

    def _rows(self, query: str, *values: object) -> Iterator[sqlite3.Row]:
        """The rows as they were written: one that carries a checksum is compared with it."""
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
            raise StoreError(f"store {self.file} cannot be read: {error}") from error

    def _read(self, make: Callable[[sqlite3.Row], T], query: str, *values: object) -> list[T]:
        with self._readable():
            return [make(row) for row in self._rows(query, *values)]

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """What cannot be decoded is damage, or of another freerun."""
        try:
            yield
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError, OverflowError) as error:
            raise damaged(self.file, f"{type(error).__name__}: {error}") from error

    def _number_of(self, query: str, *values: object) -> int:
        return int(next(self._rows(query, *values))[0])


def list_runs(directory: Path) -> list[RunSummary]:
    """Every run in a directory, the most recently written first; a store that cannot be read is a crashed run."""
    files = directory.glob(f"*/{STORE_NAME}") if directory.is_dir() else []
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


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _fields(row: sqlite3.Row) -> dict[str, Any]:
    return {name: value for name, value in dict(row).items() if name != "checksum"}


def _with_nan(row: sqlite3.Row, names: tuple[str, ...]) -> dict[str, Any]:
    """The row's fields; of those named, NULL is the nan that it stands for."""
    return _fields(row) | {name: _number(row[name]) for name in names}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _step_row(row: sqlite3.Row, metrics: dict[str, float]) -> StepRow:
    counts = _decode_counts.decode(row["staleness_counts"])
    fields: dict[str, Any] = _fields(row) | {"staleness_counts": counts, "metrics": metrics}
    return StepRow(**fields)


def _eval_row(row: sqlite3.Row) -> EvalRow:
    return EvalRow(**_with_nan(row, ("accuracy", "accuracy_low", "accuracy_high", "mean_length")))


def _problem_row(row: sqlite3.Row) -> ProblemResult:
    fields = _with_nan(row, ("mean_reward", "mean_length"))
    return ProblemResult(**{name: fields[name] for name in fields if name != "version"})


def _eval_completion_row(row: sqlite3.Row) -> EvalCompletionRow:
    fields = _with_nan(row, ("reward",)) | {
        "is_correct": bool(row["is_correct"]),
        "token_ids": np.frombuffer(row["token_ids"], np.int32),
    }
    return EvalCompletionRow(**fields)


def _trajectory_row(row: sqlite3.Row) -> TrajectoryRow:
    fields: dict[str, Any] = _fields(row) | {
        "reward": _number(row["reward"]),
        "is_correct": bool(row["is_correct"]),
        "prompt_token_ids": np.frombuffer(row["prompt_token_ids"], np.int32),
        "token_ids": np.frombuffer(row["token_ids"], np.int32),
        "logprobs": np.frombuffer(row["logprobs"], np.float32),
        "spans": _decode_spans.decode(row["spans"]),
        "reward_parts": _decode_parts.decode(row["reward_parts"]),
    }
    return TrajectoryRow(**fields)
