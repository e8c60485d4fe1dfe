"""The tables of a run's store, and the rows that events become.

    sessions      one row per start of the run: process, state, target       (a resumed run has several)
    events        every event in order, without the batches                   (msgpack body)
    steps         one row per version; metrics: its numbers by name
    trajectories  what each step consumed, whole: text, tokens, logprobs, spans, reward
    evals         one row per evaluated version; eval_problems: one per problem of it
    eval_completions   what was sampled in it, where that is kept (`freerun eval`)

(ordinal, sample) is the key of `trajectories`: SQLite itself refuses to record one trajectory as trained
twice. A not-a-number is stored as NULL, the only way SQLite knows it. Every row but those of `sessions`, which
change, carries a checksum of itself: SQLite checks the structure of its file, not what the rows say.
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from freerun.errors import FreerunError
from freerun.events.events import AnyEvent, EvalFinished, Event, RunFinished, RunStarted, StepFinished
from freerun.types import Trajectory, encode

STORE_NAME = "store.sqlite"
SCHEMA_VERSION = 3

SCHEMA = """
CREATE TABLE sessions (
    session INTEGER PRIMARY KEY, state TEXT NOT NULL, pid INTEGER NOT NULL, pid_created REAL NOT NULL,
    updated REAL NOT NULL, num_steps INTEGER NOT NULL DEFAULT 0, start_version INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '', model_directory TEXT NOT NULL DEFAULT ''
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, seconds REAL NOT NULL, kind TEXT NOT NULL, version INTEGER, body BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE steps (
    version INTEGER PRIMARY KEY, seconds REAL NOT NULL, step_seconds REAL NOT NULL, wait_seconds REAL NOT NULL,
    staleness_counts TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE metrics (
    version INTEGER NOT NULL, name TEXT NOT NULL, value REAL, checksum INTEGER NOT NULL,
    PRIMARY KEY (version, name)
) WITHOUT ROWID;
CREATE TABLE trajectories (
    ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, version INTEGER NOT NULL, key TEXT NOT NULL,
    prompt TEXT NOT NULL, answer TEXT NOT NULL, completion TEXT NOT NULL, reward REAL, is_correct INTEGER NOT NULL,
    finish_reason TEXT NOT NULL, staleness INTEGER NOT NULL, prompt_token_ids BLOB NOT NULL,
    token_ids BLOB NOT NULL, logprobs BLOB NOT NULL, spans TEXT NOT NULL,
    reward_parts TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (ordinal, sample)
);
CREATE INDEX trajectories_by_version ON trajectories (version);
CREATE TABLE evals (
    version INTEGER PRIMARY KEY, seconds REAL NOT NULL, accuracy REAL, accuracy_low REAL, accuracy_high REAL,
    num_prompts INTEGER NOT NULL, num_samples INTEGER NOT NULL, num_failed INTEGER NOT NULL, mean_length REAL,
    checksum INTEGER NOT NULL
);
CREATE TABLE eval_problems (
    version INTEGER NOT NULL, ordinal INTEGER NOT NULL, key TEXT NOT NULL, num_samples INTEGER NOT NULL,
    num_correct INTEGER NOT NULL, mean_reward REAL, mean_length REAL, failure TEXT NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (version, ordinal)
);
CREATE TABLE eval_completions (
    version INTEGER NOT NULL, ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, key TEXT NOT NULL,
    prompt TEXT NOT NULL, answer TEXT NOT NULL, completion TEXT NOT NULL, reward REAL, is_correct INTEGER NOT NULL,
    finish_reason TEXT NOT NULL, token_ids BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (version, ordinal, sample)
);
"""


CHECKED_TABLES = ("events", "steps", "metrics", "trajectories", "evals", "eval_problems", "eval_completions")
"""Tables whose rows carry a checksum; each has a version as well."""


DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises for a damaged file; the second when the message itself quotes damaged bytes."""


class StoreError(FreerunError):
    """A store that cannot be opened, read or written."""


def damaged(file: Path, what: str) -> StoreError:
    """The error for a store that is not what was written."""
    return StoreError(
        f"store {file} is damaged: {what}; put a whole copy of it in its place, or start a run under another name"
    )


class Rewound(Event, frozen=True, kw_only=True, tag="rewound"):
    """A resumed run forgot the steps after its checkpoint; they will be made again."""

    version: int
    num_steps: int
    """Steps that were forgotten."""


def store_file(path: Path) -> Path:
    """The store of a run directory; a path that names the file itself is taken as it is."""
    return path if path.suffix == ".sqlite" else path / STORE_NAME


def check_schema(connection: sqlite3.Connection, file: Path) -> None:
    """Refuse a store that this version of freerun does not know how to read."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"store {file} has schema version {found}, this freerun knows {SCHEMA_VERSION}; "
            "use the freerun that made it, or start the run under another name"
        )
    if _statements(connection) != _own_statements():
        raise damaged(file, f"its tables are not those of schema version {SCHEMA_VERSION}")


def _statements(db: sqlite3.Connection) -> frozenset[str]:
    """How the tables of a file were made: a name in there may be damaged like any row."""
    return frozenset(row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


@cache
def _own_statements() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:")) as db:
        create_tables(db)
        return _statements(db)


def is_empty(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def create_tables(db: sqlite3.Connection) -> None:
    # Not `executescript`, which would commit the transaction under way.
    for statement in filter(str.strip, SCHEMA.split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def process_created(pid: int) -> float | None:
    """When the process with this id was started, or None if there is none; tells a reused id apart."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def is_alive(pid: int, created: float) -> bool:
    """Whether the process that wrote this id and start time still runs."""
    found = process_created(pid)
    return found is not None and abs(found - created) < 1.0


def checksum(row: Mapping[str, Any]) -> int:
    """Of what the row says, whether it is about to be written or was read back.

    SQLite gives a whole number as a float where the column is one, and a not-a-number as None.
    """
    values = [row[name] for name in sorted(row) if name not in ("id", "checksum")]
    return zlib.crc32(encode([_as_read(value) for value in values]))


def _as_read(value: Any) -> Any:
    if isinstance(value, int | float):
        return None if math.isnan(value) else float(value)
    return value


def insert(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows with their checksums."""
    checked = [{**row, "checksum": checksum(row)} for row in rows]
    if checked:
        columns, values = ", ".join(checked[0]), ", ".join(f":{name}" for name in checked[0])
        db.executemany(f"INSERT INTO {table} ({columns}) VALUES ({values})", checked)


def _valid_text(text: str) -> str:
    """Text as UTF-8 can hold it: a lone surrogate from a data file must not stop the writer."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _event_row(event: AnyEvent | Rewound) -> dict[str, Any]:
    """A row of `events`: what has a table of its own (batches, problems, completions) is left out."""
    kind = str(event.__struct_config__.tag)
    # A run's start and end name a version too, but they happened whatever is made again later.
    is_rewindable = kind in ("weights_loaded", "eval_skipped", "checkpoint_saved")
    version = getattr(event, "version", None) if is_rewindable else None
    if isinstance(event, StepFinished):
        version, event = event.result.version, msgspec.structs.replace(event, groups=())
    elif isinstance(event, EvalFinished):
        version, event = event.version, msgspec.structs.replace(event, problems=(), groups=())
    try:
        body = encode(event)
    except UnicodeEncodeError:
        texts = {name: _valid_text(v) for name, v in msgspec.structs.asdict(event).items() if isinstance(v, str)}
        body = encode(msgspec.structs.replace(event, **texts))
    return {"seconds": event.seconds, "kind": kind, "version": version, "body": body}


def _trajectory_row(version: int, trajectory: Trajectory) -> dict[str, Any]:
    """A row of `trajectories`; `version` is the one its step produced, so it was trained at version - 1."""
    prompt, completion = trajectory.prompt, trajectory.completion
    return {
        "ordinal": prompt.ordinal,
        "sample": trajectory.sample,
        "version": version,
        "key": _valid_text(prompt.key),
        "prompt": _valid_text(prompt.text),
        "answer": _valid_text(prompt.answer),
        "completion": _valid_text(completion.text),
        "reward": trajectory.reward.value,
        "is_correct": trajectory.reward.is_correct,
        "finish_reason": completion.finish_reason,
        "staleness": version - 1 - completion.oldest_version,
        "prompt_token_ids": np.asarray(prompt.token_ids, np.int32).tobytes(),
        "token_ids": np.asarray(completion.token_ids, np.int32).tobytes(),
        "logprobs": np.asarray(completion.logprobs, np.float32).tobytes(),
        "spans": msgspec.json.encode(completion.spans).decode(),
        "reward_parts": msgspec.json.encode(trajectory.reward.parts).decode(),
    }


def insert_event(db: sqlite3.Connection, event: AnyEvent | Rewound) -> None:
    insert(db, "events", [_event_row(event)])


def insert_facts(db: sqlite3.Connection, event: AnyEvent, session: int) -> None:
    """Put what people ask for into tables of its own."""
    match event:
        case StepFinished():
            _insert_step(db, event)
        case EvalFinished():
            _insert_eval(db, event)
        case RunStarted():
            db.execute(
                "UPDATE sessions SET num_steps = ?, start_version = ? WHERE session = ?",
                (event.num_steps, event.version, session),
            )
        case RunFinished():
            db.execute(
                "UPDATE sessions SET state = ?, reason = ?, model_directory = ? WHERE session = ?",
                (event.outcome, _valid_text(event.reason), event.model_directory, session),
            )


def _insert_step(db: sqlite3.Connection, event: StepFinished) -> None:
    version, result = event.result.version, event.result
    step = {
        "version": version,
        "seconds": event.seconds,
        "step_seconds": event.step_seconds,
        "wait_seconds": event.wait_seconds,
        "staleness_counts": msgspec.json.encode(result.staleness_counts).decode(),
    }
    insert(db, "steps", [step])
    metrics = ({"version": version, "name": name, "value": value} for name, value in result.metrics.items())
    insert(db, "metrics", metrics)
    insert(db, "trajectories", (_trajectory_row(version, t) for g in event.groups for t in g.trajectories))


def _insert_eval(db: sqlite3.Connection, event: EvalFinished) -> None:
    """The evaluation's tables; a resumed run evaluates its first version again, and the newer answer stands."""
    version = event.version
    for table in ("evals", "eval_problems", "eval_completions"):
        db.execute(f"DELETE FROM {table} WHERE version = ?", (version,))
    columns = ("version", "seconds", "accuracy", "accuracy_low", "accuracy_high", "num_prompts", "num_samples",
               "num_failed", "mean_length")  # fmt: skip
    insert(db, "evals", [{name: getattr(event, name) for name in columns}])
    problems = (msgspec.structs.asdict(problem) for problem in event.problems)
    texts = ("key", "failure")
    insert(
        db, "eval_problems", ({"version": version} | p | {t: _valid_text(p[t]) for t in texts} for p in problems)
    )
    kept = ("version", "ordinal", "sample", "key", "prompt", "answer", "completion", "reward", "is_correct",
            "finish_reason", "token_ids")  # fmt: skip
    completions = (_trajectory_row(version, t) for group in event.groups for t in group)
    insert(db, "eval_completions", ({name: row[name] for name in kept} for row in completions))
