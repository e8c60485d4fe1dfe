"""Converts an event to rows: one row of `events`, and rows of the tables that users query."""

import math
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from freerun.events.events import AnyEvent, EvalFinished, GroupFinished, RunFinished, RunStarted, StepFinished
from freerun.events.schema import (
    EVAL_COMPLETIONS,
    EVAL_PROMPTS,
    EVALS,
    EVENTS,
    LOST_GROUPS,
    NUM_LOST,
    STEPS,
    TABLES,
    TRAJECTORIES,
    EventRow,
    LostRow,
    Rewound,
    StepRow,
    TrajectoryRow,
)
from freerun.events.table import valid_text
from freerun.types import Prompt, TrainedTrajectory, Trajectory, encode

UNKNOWN_TO_TRAINER = TrainedTrajectory(
    log_weights=np.empty(0, np.float16), advantage=math.nan, clipped=np.empty(0, np.int32)
)


def insert_event(db: sqlite3.Connection, event: AnyEvent | Rewound) -> int:
    """Record an event without the parts in separate tables (batches, prompts, completions); returns its id."""
    kind = str(event.__struct_config__.tag)
    # A run's start and end also name a version, but they stay true after a rewind.
    is_rewindable = kind in ("weights_loaded", "engine_loaded", "eval_skipped", "checkpoint_saved")
    version = getattr(event, "version", None) if is_rewindable else None
    if isinstance(event, StepFinished):
        version = event.result.version
    elif isinstance(event, EvalFinished):
        version = event.version
    slim = without_batches(event)
    try:
        body = encode(slim)
    except UnicodeEncodeError:
        body = encode(_with_valid_text(slim))
    EVENTS.insert(db, [EventRow(seconds=event.seconds, kind=kind, version=version, body=body)])
    return int(db.execute("SELECT last_insert_rowid()").fetchone()[0])


def without_batches(event: AnyEvent | Rewound) -> AnyEvent | Rewound:
    """The small form of the event that `events` holds."""
    replace = msgspec.structs.replace
    match event:
        case StepFinished():
            return replace(event, groups=(), result=replace(event.result, trajectories=()))
        case EvalFinished():
            return replace(event, prompts=(), groups=())
        case RunStarted():
            return replace(event, settings="")
        case GroupFinished() if event.prompt is not None or event.lost:
            return replace(event, prompt=None, lost=())
        case _:
            return event


def _with_valid_text(value: Any) -> Any:
    """The value with invalid Unicode replaced in all strings, however deep."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return msgspec.structs.replace(value, **{name: _with_valid_text(field) for name, field in fields})
    return value


def insert_facts(db: sqlite3.Connection, event: AnyEvent, *, event_id: int, session: int) -> None:
    """Write the rows of the tables that users query."""
    match event:
        case GroupFinished() if event.prompt is not None:
            LOST_GROUPS.insert(db, _lost_rows(event, event.prompt, event_id))
        case StepFinished():
            _insert_step(db, event)
        case EvalFinished():
            _insert_eval(db, event)
        case RunStarted():
            db.execute(
                "UPDATE sessions SET num_steps = ?, start_version = ?, settings = ?, origin = ? WHERE session = ?",
                (event.num_steps, event.version, valid_text(event.settings), valid_text(event.origin), session),
            )
            if event.provenance is not None:
                known = msgspec.structs.asdict(event.provenance)
                names = ", ".join(f"{name} = :{name}" for name in known)
                db.execute(f"UPDATE sessions SET {names} WHERE session = :session", known | {"session": session})
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
        phases=result.phases,
        queues=event.queues,
    )
    STEPS.insert(db, [step])
    trajectories = [t for group in event.groups for t in group.trajectories]
    trained = result.trajectories or (UNKNOWN_TO_TRAINER,) * len(trajectories)
    rows = (_trajectory_row(result.version, t, of) for t, of in zip(trajectories, trained, strict=True))
    TRAJECTORIES.insert(db, rows)


def _lost_rows(event: GroupFinished, prompt: Prompt, event_id: int) -> list[LostRow]:
    completions = [(t.sample, t.part, t.completion, t.reward) for t in event.lost]
    row = LostRow(
        version=min((c.oldest_version for _, _, c, _ in completions), default=None),
        event=event_id,
        seconds=event.seconds,
        outcome=event.outcome,
        reason=event.reason,
        ordinal=event.ordinal,
        sample=-1,
        part=0,
        key=prompt.key,
        prompt=prompt.text,
        answer=prompt.answer,
        completion="",
        reward=math.nan,
        is_correct=False,
        finish_reason="",
        token_ids=np.empty(0, np.int32),
    )
    return [
        msgspec.structs.replace(
            row,
            sample=sample,
            part=part,
            completion=completion.text,
            reward=reward.value,
            is_correct=reward.is_correct,
            finish_reason=completion.finish_reason,
            token_ids=completion.token_ids,
        )
        for sample, part, completion, reward in completions
    ] or [row]


def delete_after(db: sqlite3.Connection, version: int, seconds: float, *, kept: Sequence[str] = ()) -> int:
    """Delete steps after `version` and events after `seconds` except `kept` kinds; returns the number of steps."""
    [num_steps] = db.execute("SELECT count(*) FROM steps WHERE version > ?", (version,)).fetchone()
    for table in TABLES:
        db.execute(f"DELETE FROM {table.name} WHERE version > ?", (version,))
    db.execute("DELETE FROM lost WHERE seconds > ?", (seconds,))
    marks = ", ".join("?" * len(kept))
    db.execute(
        f"DELETE FROM events WHERE seconds > ? AND version IS NULL AND kind NOT IN ({marks})", (seconds, *kept)
    )
    return int(num_steps)


def trim_lost(db: sqlite3.Connection) -> None:
    """Keep only the newest groups of each outcome."""
    for [outcome] in db.execute("SELECT DISTINCT outcome FROM lost").fetchall():
        newest = "SELECT DISTINCT event FROM lost WHERE outcome = ? ORDER BY event DESC LIMIT ?"
        db.execute(
            f"DELETE FROM lost WHERE outcome = ? AND event < (SELECT min(event) FROM ({newest}))",
            (outcome, outcome, NUM_LOST),
        )


def _insert_eval(db: sqlite3.Connection, event: EvalFinished) -> None:
    """Write the evaluation's tables; a resumed run evaluates its first version again and replaces the result."""
    version = event.version
    for table in (EVALS, EVAL_PROMPTS, EVAL_COMPLETIONS):
        db.execute(f"DELETE FROM {table.name} WHERE version = ?", (version,))
    EVALS.insert(db, [event])
    EVAL_PROMPTS.insert(db, event.prompts, version=version)
    rows = (_trajectory_row(version, t, UNKNOWN_TO_TRAINER) for group in event.groups for t in group)
    EVAL_COMPLETIONS.insert(db, rows)


def _trajectory_row(version: int, trajectory: Trajectory, trained: TrainedTrajectory) -> TrajectoryRow:
    """A row of `trajectories`; `version` is the one its step produced: it was trained at version - 1."""
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
        log_weights=trained.log_weights,
        advantage=trained.advantage,
        num_clipped=trained.num_clipped,
        clipped=trained.clipped,
    )
