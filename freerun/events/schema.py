"""The tables of a run's store, and the rows that events become.

    sessions      one row per start of the run: process, state, target       (a resumed run has several)
    events        every event in order, without the batches                   (msgpack body)
    steps         one row per version
    trajectories  what each step consumed: text, tokens, logprobs, spans, reward; one row per sequence
    evals         one row per evaluated version; eval_prompts: one per prompt of it
    eval_completions   what was sampled in it, where that is kept (`freerun eval`)

(ordinal, sample, part) is the key of `trajectories`: SQLite itself refuses to record one trajectory as trained
twice. Rows of `sessions` change, so they carry no checksum.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import psutil

from freerun.errors import FreerunError
from freerun.events.events import (
    AnyEvent,
    EvalFinished,
    EvalRow,
    Event,
    PromptResult,
    RunFinished,
    RunStarted,
    StepFinished,
)
from freerun.events.table import Table, valid_text
from freerun.types import FinishReason, Floats, Ints, Span, Trajectory, encode

STORE_NAME = "store.sqlite"
SCHEMA_VERSION = 5
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises for a damaged file; the second when the message itself quotes damaged bytes."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded step."""

    version: int
    seconds: float
    step_seconds: float
    wait_seconds: float
    staleness_counts: dict[int, int]
    metrics: dict[str, float]


class EvalCompletionRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded completion of an evaluation."""

    version: int
    ordinal: int
    sample: int
    part: int
    """Of a session that became several sequences."""
    key: str
    prompt: str
    answer: str
    completion: str
    reward: float
    is_correct: bool
    finish_reason: FinishReason
    token_ids: Ints


class TrajectoryRow(EvalCompletionRow, frozen=True, kw_only=True, eq=False):
    """A recorded trajectory, as it was trained on; `version` is that of the step that consumed it."""

    staleness: int
    prompt_token_ids: Ints
    logprobs: Floats
    spans: tuple[Span, ...]
    """Given tokens are in spans without a version."""
    reward_parts: dict[str, float]
    """What each part of a summed reward was worth before its weight; empty for a reward of one part."""
    reward_turns: tuple[float, ...]
    """What each call of a session earned; empty where only the whole was judged."""


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded event."""

    id: int | None = None
    """Its place in the order of events; given by SQLite."""
    seconds: float
    kind: str
    version: int | None
    """A rewind to an earlier version removes it."""
    body: bytes


SESSIONS = """CREATE TABLE sessions (
    session INTEGER PRIMARY KEY, state TEXT NOT NULL, pid INTEGER NOT NULL, pid_created REAL NOT NULL,
    updated REAL NOT NULL, num_steps INTEGER NOT NULL DEFAULT 0, start_version INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '', model_directory TEXT NOT NULL DEFAULT ''
)"""
EVENTS = Table("events", EventRow, key=("id",))
STEPS = Table("steps", StepRow, key=("version",))
TRAJECTORIES = Table("trajectories", TrajectoryRow, key=("ordinal", "sample", "part"))
EVALS = Table("evals", EvalRow, key=("version",))
EVAL_PROMPTS = Table("eval_prompts", PromptResult, key=("version", "ordinal"))
EVAL_COMPLETIONS = Table("eval_completions", EvalCompletionRow, key=("version", "ordinal", "sample", "part"))
TABLES = (EVENTS, STEPS, TRAJECTORIES, EVALS, EVAL_PROMPTS, EVAL_COMPLETIONS)
BY_VERSION = "CREATE INDEX trajectories_by_version ON trajectories (version)"


class StoreError(FreerunError):
    """A store that cannot be opened, read or written."""


def damaged(file: Path, what: str) -> StoreError:
    """The error for a store that is not what was written."""
    return StoreError(
        f"store {file} is damaged: {what}; put an intact copy in its place, or start a run under another name"
    )


class Rewound(Event, frozen=True, kw_only=True, tag="rewound"):
    """A resumed run discarded the steps after its checkpoint; they will be repeated."""

    version: int
    num_steps: int
    """Steps that were discarded."""


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
    """The SQL of the tables of a file, which may be damaged too."""
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
    for statement in (SESSIONS, *(table.create for table in TABLES), BY_VERSION):
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


def insert_event(db: sqlite3.Connection, event: AnyEvent | Rewound) -> None:
    """Record an event without the parts that have a separate table: batches, prompts, completions."""
    kind = str(event.__struct_config__.tag)
    # A run's start and end also name a version, but they stay true after a rewind.
    is_rewindable = kind in ("weights_loaded", "eval_skipped", "checkpoint_saved")
    version = getattr(event, "version", None) if is_rewindable else None
    if isinstance(event, StepFinished):
        version, event = event.result.version, msgspec.structs.replace(event, groups=())
    elif isinstance(event, EvalFinished):
        version, event = event.version, msgspec.structs.replace(event, prompts=(), groups=())
    try:
        body = encode(event)
    except UnicodeEncodeError:
        body = encode(_with_valid_text(event))
    EVENTS.insert(db, [EventRow(seconds=event.seconds, kind=kind, version=version, body=body)])


def _with_valid_text(value: Any) -> Any:
    """The same value, with replacements where a string, however deep, is not Unicode."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return msgspec.structs.replace(value, **{name: _with_valid_text(field) for name, field in fields})
    return value


def insert_facts(db: sqlite3.Connection, event: AnyEvent, session: int) -> None:
    """Write the rows of the tables that people query."""
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
                (event.outcome, valid_text(event.reason), event.model_directory, session),
            )


def _insert_step(db: sqlite3.Connection, event: StepFinished) -> None:
    result = event.result
    step = StepRow(
        version=result.version,
        seconds=event.seconds,
        step_seconds=event.step_seconds,
        wait_seconds=event.wait_seconds,
        staleness_counts=result.staleness_counts,
        metrics=result.metrics,
    )
    STEPS.insert(db, [step])
    rows = (_trajectory_row(result.version, t) for group in event.groups for t in group.trajectories)
    TRAJECTORIES.insert(db, rows)


def _insert_eval(db: sqlite3.Connection, event: EvalFinished) -> None:
    """The evaluation's tables; a resumed run evaluates its first version again and replaces the result."""
    version = event.version
    for table in (EVALS, EVAL_PROMPTS, EVAL_COMPLETIONS):
        db.execute(f"DELETE FROM {table.name} WHERE version = ?", (version,))
    EVALS.insert(db, [event])
    EVAL_PROMPTS.insert(db, event.prompts, version=version)
    EVAL_COMPLETIONS.insert(db, (_trajectory_row(version, t) for group in event.groups for t in group))


def _trajectory_row(version: int, trajectory: Trajectory) -> TrajectoryRow:
    """A row of `trajectories`; `version` is the one its step produced, so it was trained at version - 1."""
    prompt, completion, reward = trajectory.prompt, trajectory.completion, trajectory.reward
    return TrajectoryRow(
        version=version,
        ordinal=prompt.ordinal,
        sample=trajectory.sample,
        part=trajectory.part,
        key=prompt.key,
        prompt=prompt.text,
        answer=prompt.answer,
        completion=completion.text,
        reward=reward.value,
        is_correct=reward.is_correct,
        finish_reason=completion.finish_reason,
        token_ids=completion.token_ids,
        staleness=version - 1 - completion.oldest_version,
        prompt_token_ids=prompt.token_ids,
        logprobs=completion.logprobs,
        spans=completion.spans,
        reward_parts=reward.parts,
        reward_turns=reward.turns,
    )
