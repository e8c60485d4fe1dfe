"""The tables of a run's store; `recording.py` converts events to rows.

    sessions      one row per start of the run (a resumed one has several): process, state, settings, provenance
    events        every event in order, without the batches                   (msgpack body)
    steps         one row per version
    trajectories  what each step consumed: text, tokens, logprobs, spans, reward; one row per sequence
    lost          what was sampled and not trained on: the newest groups of each outcome
    evals         one row per evaluated version; eval_prompts: one per prompt of it
    eval_completions   what was sampled in it: all of `freerun eval`, some of a run's

(ordinal, sample, part) is the key of `trajectories`: SQLite itself refuses to record a trajectory as trained
twice. Rows of `sessions` change, so they have no checksum. `docs/metrics.md` describes every column.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import msgspec
import psutil

from freerun.errors import FreerunError
from freerun.events.events import EvalRow, Event, PromptResult, QueueCounts
from freerun.events.table import Table
from freerun.types import FinishReason, Floats, Ints, Span

STORE_NAME = "store.sqlite"
STORES_OF_RUNS = f"[!.]*/{STORE_NAME}"
"""Stores in a directory of runs; a name that begins with a dot is a run still being made, or given up."""
SCHEMA_VERSION = 8
PAGE_BYTES = 8192
"""Rows of a few hundred tokens waste SQLite's 4096-byte pages: these need a third less disk and are faster."""
NUM_LOST = 200
"""Number of groups kept of each outcome."""
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
    phases: tuple[tuple[str, float], ...] = ()
    """What the trainer did since the previous step, with seconds."""
    queues: QueueCounts | None = None
    """What waited after the step."""


class EvalCompletionRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded completion of an evaluation."""

    version: int
    ordinal: int
    sample: int
    part: int
    """Index of the sequence, if a session became several."""
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
    """Spans; given tokens are in spans without a version."""
    reward_parts: dict[str, float]
    """Values of the parts of a summed reward, before weighting; empty for a reward of one part."""
    reward_turns: tuple[float, ...]
    """Reward of each call of a session; empty if only the whole session was judged."""
    log_weights: Floats
    """Proximal minus behaviour logprob of each sampled token, as float16; empty if it was not computed."""
    advantage: float
    """Mean over its sampled tokens; NaN if unknown."""
    num_clipped: int
    """Number of tokens held back by the trust region."""
    clipped: Ints
    """Positions of these among the trajectory's sampled tokens."""


class LostRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded completion that was not trained on; a group without completions has one row."""

    version: int | None
    """The oldest version that sampled it."""
    event: int
    """Id of its `group_finished` event, shared by the rows of a group."""
    seconds: float
    outcome: str
    reason: str
    ordinal: int
    sample: int
    """-1 in the row of a group without completions."""
    part: int
    key: str
    prompt: str
    answer: str
    completion: str
    reward: float
    """NaN if it was not graded."""
    is_correct: bool
    finish_reason: str
    token_ids: Ints


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded event."""

    id: int | None = None
    """Position in the order of events; assigned by SQLite."""
    seconds: float
    kind: str
    version: int | None
    """The version whose rewind removes the event."""
    body: bytes


SESSIONS = """CREATE TABLE sessions (
    session INTEGER PRIMARY KEY, state TEXT NOT NULL, pid INTEGER NOT NULL, pid_created REAL NOT NULL,
    updated REAL NOT NULL, num_steps INTEGER NOT NULL DEFAULT 0, start_version INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '', model_directory TEXT NOT NULL DEFAULT '',
    freerun TEXT NOT NULL DEFAULT '', python TEXT NOT NULL DEFAULT '', torch TEXT NOT NULL DEFAULT '',
    cpu TEXT NOT NULL DEFAULT '', num_cores INTEGER NOT NULL DEFAULT 0,
    num_trainer_threads INTEGER NOT NULL DEFAULT 0, grader_sha256 TEXT NOT NULL DEFAULT '',
    task_sha256 TEXT NOT NULL DEFAULT '', settings TEXT NOT NULL DEFAULT '', origin TEXT NOT NULL DEFAULT ''
)"""
EVENTS = Table("events", EventRow, key=("id",))
STEPS = Table("steps", StepRow, key=("version",))
TRAJECTORIES = Table("trajectories", TrajectoryRow, key=("ordinal", "sample", "part"))
EVALS = Table("evals", EvalRow, key=("version",))
EVAL_PROMPTS = Table("eval_prompts", PromptResult, key=("version", "ordinal"))
EVAL_COMPLETIONS = Table("eval_completions", EvalCompletionRow, key=("version", "ordinal", "sample", "part"))
LOST_GROUPS = Table("lost", LostRow, key=("event", "sample", "part"))
TABLES = (EVENTS, STEPS, TRAJECTORIES, EVALS, EVAL_PROMPTS, EVAL_COMPLETIONS, LOST_GROUPS)
INDEXES = (
    "CREATE INDEX trajectories_by_version ON trajectories (version)",
    "CREATE INDEX events_by_kind ON events (kind, seconds)",
    "CREATE INDEX lost_by_outcome ON lost (outcome, event)",
)


class StoreError(FreerunError):
    """A store that cannot be opened, read or written."""


def damaged(file: Path, what: str) -> StoreError:
    """The error for a store whose contents are not what was written."""
    return StoreError(
        f"store {file} is damaged: {what}; put an intact copy in its place, or start a run under another name"
    )


class Rewound(Event, frozen=True, kw_only=True, tag="rewound"):
    """A resumed run discarded the steps after its checkpoint; they will be repeated."""

    version: int
    num_steps: int
    """Number of discarded steps."""


def store_file(path: Path) -> Path:
    """The store of a run directory; a path to the file itself is returned as it is."""
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
    """The SQL of a file's tables; the file may be damaged."""
    return frozenset(row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


@cache
def _own_statements() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:")) as db:
        create_tables(db)
        return _statements(db)


def is_empty(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def create_tables(db: sqlite3.Connection) -> None:
    # `executescript` would commit the transaction in progress.
    for statement in (SESSIONS, *(table.create for table in TABLES), *INDEXES):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def process_created(pid: int) -> float | None:
    """When the process with this id was started, which tells reused ids apart; None if there is none."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def is_alive(pid: int, created: float) -> bool:
    """Whether the process with this id and start time still runs."""
    found = process_created(pid)
    return found is not None and abs(found - created) < 1.0
