"""Recorded samples and their rewards: batches, whole groups token by token, and lost samples.

batch      one line per sample of a step: the page orders and filters them
group      the samples of one prompt, token by token
lost       samples that were not trained on
search     a text in all completions of the run
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freerun.dashboard.source import Source, finite
from freerun.dashboard.token_texts import first_difference, token_texts
from freerun.events.events import GroupFinished
from freerun.events.metrics import failure_kind
from freerun.events.reader import RunReader
from freerun.events.schema import EvalCompletionRow, TrajectoryRow
from freerun.types import encode

MAX_LINE = 240
"""Characters of a completion shown in a line."""
MAX_PROMPT = 4000
MAX_TOKENS = 60_000
"""Limit on the tokens of a group that are sent one by one."""
MAX_FOUND = 200


MAX_DIGITS = 18
"""SQLite has no longer integers."""


def batch_feed(source: Source, params: Mapping[str, str]) -> object:
    """The batch of `step`, by default the last one."""
    if not source.has_store:
        return {"step": None, "steps": None, "groups": {}, "rows": []}
    with source.reader() as reader:
        last = reader.last_step()
        newest = last.version if last else None
        step = integer_of(params, "step", newest)
        rows = reader.trajectories(step) if step is not None else []
    first = source.state.first_step
    return {
        "step": step,
        "first": first.result.version if first else None,
        "last": newest,
        "max_staleness": source.state.max_staleness,
        "groups": {str(row.ordinal): about_prompt(row) for row in rows},
        "rows": [_line(row) for row in rows],
    }


def about_prompt(row: EvalCompletionRow) -> dict[str, Any]:
    return {"key": row.key, "prompt": row.prompt[-MAX_PROMPT:], "answer": row.answer[:MAX_LINE]}


def _line(row: TrajectoryRow) -> dict[str, Any]:
    versions = [span.version for span in row.spans if span.version is not None]
    weights = row.log_weights.astype(np.float32)
    return {
        "ordinal": row.ordinal,
        "sample": row.sample,
        "part": row.part,
        "reward": finite(row.reward),
        "is_correct": row.is_correct,
        "advantage": finite(row.advantage),
        "is_cut_off": row.finish_reason == "length",
        "age": row.staleness,
        "oldest": min(versions, default=None),
        "newest": max(versions, default=None),
        "num_tokens": sum(span.num_tokens for span in row.spans if span.version is not None),
        "num_calls": 1 + max((span.call for span in row.spans), default=0),
        "num_clipped": row.num_clipped if weights.size or not math.isnan(row.advantage) else None,
        "weight": finite(float(np.exp(weights.max())), 4) if weights.size else None,
        "parts": {name: finite(value) for name, value in row.reward_parts.items()},
        "text": row.completion[:MAX_LINE],
        "is_long": len(row.completion) > MAX_LINE,
    }


def group_feed(source: Source, params: Mapping[str, str]) -> object:
    """The group `ordinal` of `step`, token by token."""
    step, ordinal = integer_of(params, "step", -1), integer_of(params, "ordinal", -1)
    with source.reader() as reader:
        rows = reader.group(step if step is not None else -1, ordinal if ordinal is not None else -1)
        life = _life(source, reader, step, ordinal) if rows else None
    if not rows:
        return {"step": step, "ordinal": ordinal, "samples": [], "life": None}
    budget = MAX_TOKENS // len(rows)
    return {
        "step": step,
        "ordinal": ordinal,
        **about_prompt(rows[0]),
        "replay_command": f"freerun replay {shlex.quote(source.name_for_commands)} --group {ordinal}",
        "life": life,
        "samples": [_sample(source, row, rows, budget) for row in rows],
    }


def _sample(source: Source, row: TrajectoryRow, siblings: Sequence[TrajectoryRow], budget: int) -> dict[str, Any]:
    texts = _texts(source, row, budget)
    return _line(row) | {
        "text": row.completion[: 8 * budget],
        "finish_reason": row.finish_reason,
        "tokens": texts,
        "ids": row.token_ids[:budget].tolist(),
        "num_hidden": max(0, len(row.token_ids) - budget),
        "logprobs": [round(float(value), 3) for value in row.logprobs[:budget]],
        "log_weights": _of_all_tokens(row)[:budget],
        "clipped": _clipped(row),
        "spans": [[span.version, span.num_tokens, span.call] for span in row.spans],
        "turns": [finite(value) for value in row.reward_turns],
        "departs": _departure(row, siblings),
    }


def _texts(source: Source, row: EvalCompletionRow, budget: int) -> list[str] | None:
    """The text of each token; None without a tokenizer, where only the whole text is known."""
    if source.tokenizer is None:
        return None
    return token_texts(source.tokenizer, row.token_ids[:budget])


def _of_all_tokens(row: TrajectoryRow) -> list[float | None]:
    """Logs of the behaviour weights; None for given tokens and where the trainer did not report one."""
    if not row.log_weights.size:
        return []
    known = iter(row.log_weights.astype(np.float32))
    return [
        None if span.version is None else finite(float(next(known, math.nan)), 4)
        for span in row.spans
        for _ in range(span.num_tokens)
    ]


def _clipped(row: TrajectoryRow) -> list[int]:
    """Positions of the clipped tokens among all tokens of the sequence."""
    lengths = [span.num_tokens for span in row.spans]
    is_sampled = np.repeat([span.version is not None for span in row.spans], lengths)
    places: list[int] = np.flatnonzero(is_sampled)[row.clipped].tolist()
    return places


def _departure(row: TrajectoryRow, siblings: Sequence[TrajectoryRow]) -> dict[str, int] | None:
    """For a wrong sample: the token at which it departs from the most similar correct sample."""
    right = [sibling for sibling in siblings if sibling.is_correct and sibling.part == row.part]
    if row.is_correct:
        return None
    found = first_difference(row.token_ids.tolist(), [sibling.token_ids.tolist() for sibling in right])
    return {"sample": right[found[0]].sample, "at": found[1]} if found else None


def _life(source: Source, reader: RunReader, step: int | None, ordinal: int | None) -> dict[str, Any] | None:
    """When the group was started, sampled, graded and trained on."""
    trained = reader.step(step or 0)
    if trained is None:
        return None
    # It cannot have ended earlier than the bound allows; a resumed run may have another clock.
    earliest = reader.step((step or 0) - source.state.max_staleness - 2)
    begins = [earliest.seconds, max(0.0, earliest.seconds - 600.0)] if earliest else [0.0]
    ends = (_end_of_group(reader, ordinal, begin, trained.seconds) for begin in begins)
    event = next(filter(None, ends), None)
    if event is None:
        return {"trained": finite(trained.seconds)}
    return {
        "started": finite(event.started),
        "sampled": finite(event.sampled),
        "graded": finite(event.graded),
        "buffered": finite(event.seconds),
        "trained": finite(trained.seconds),
        "worker": event.worker,
        "num_interrupts": event.num_interrupts,
    }


def _end_of_group(reader: RunReader, ordinal: int | None, begin: float, end: float) -> GroupFinished | None:
    written = encode("ordinal") + encode(ordinal)
    for _, event in reader.numbered_events("group_finished", begin=begin, end=end, holding=written):
        if isinstance(event, GroupFinished) and event.ordinal == ordinal:
            return event
    return None


def lost_feed(source: Source, params: Mapping[str, str]) -> object:
    """The newest groups that were sampled and not trained on; rows refer to their reason by index in `reasons`."""
    with source.reader() as reader:
        rows = reader.lost()
    shown = rows[-500:][::-1]
    kinds = {failure_kind(row.reason): row.reason for row in reversed(shown) if row.reason}
    places = {kind: place for place, kind in enumerate(kinds)}
    return {
        "num_rows": len(rows),
        "reasons": [
            {
                "text": reason[:2000],
                "num_groups": len({row.event for row in shown if failure_kind(row.reason) == kind}),
            }
            for kind, reason in kinds.items()
        ],
        "totals": {name: number for name, number in source.state.groups.items() if name != "buffered"},
        "rows": [
            {
                "event": row.event,
                "seconds": finite(row.seconds),
                "outcome": row.outcome,
                "reason": places.get(failure_kind(row.reason)) if row.reason else None,
                "ordinal": row.ordinal,
                "sample": row.sample,
                "key": row.key,
                "prompt": row.prompt[-MAX_PROMPT:],
                "answer": row.answer[:MAX_LINE],
                "completion": row.completion[:2000],
                "reward": finite(row.reward),
                "is_correct": row.is_correct,
                "is_cut_off": row.finish_reason == "length",
                "num_tokens": len(row.token_ids),
            }
            for row in shown
        ],
    }


def search_feed(source: Source, params: Mapping[str, str]) -> object:
    """Completions that contain `text`, newest first."""
    text = params.get("text", "")
    if not text:
        return {"text": "", "rows": []}
    with source.reader() as reader:
        rows = reader.containing(text, limit=MAX_FOUND)
    found = [_line(row) | {"step": row.version} | about_prompt(row) for row in rows]
    return {"text": text, "rows": found, "is_cut": len(rows) == MAX_FOUND}


def integer_of(params: Mapping[str, str], name: str, default: int | None) -> int | None:
    value = params.get(name, "")
    if not value:
        return default
    if not value.removeprefix("-").isdecimal() or len(value) > MAX_DIGITS:
        raise ValueError(f'{name} = "{value[:40]}" is not a whole number')
    return int(value)
