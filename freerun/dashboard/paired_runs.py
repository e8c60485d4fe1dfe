"""The last evaluations of two runs per prompt: which prompts differ, and what both wrote for the same prompt.

Prompts are matched by key. Two data files may use one key for different prompts: if the recorded answers
differ, the prompt is ignored.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freerun.dashboard.held_out import Evaluated, changes_between, outcome_of, read_evaluated
from freerun.dashboard.samples import about_prompt
from freerun.dashboard.source import Source, runs_inside
from freerun.events.reader import RunReader
from freerun.events.schema import StoreError

MAX_SHARED_PROMPTS = 1000
MAX_SAMPLES = 16
"""Samples of a prompt shown per run."""


def paired_feed(source: Source, params: Mapping[str, str]) -> object:
    """The differences between the two runs in `runs`, separated by a comma, and the samples of `prompt`."""
    inside = runs_inside(source.runs)
    names = [name for name in dict.fromkeys(params.get("runs", "").split(",")) if name in inside][:2]
    sides = [_last_evaluation(inside[name]) for name in names]
    shown = [
        {"name": name, "version": side.version if side else None} for name, side in zip(names, sides, strict=True)
    ]
    known = [side for side in sides if side]
    if len(known) < 2:
        return {"runs": shown, "changes": None, "prompts": [], "prompt": None, "samples": []}
    before, after = known
    others = _other_prompts(before, after)
    changes = changes_between(before, after, left_out=others)
    keys = {prompt.key for prompt in before.prompts} - others
    changed = [row["key"] for row in changes["rows"]]
    unchanged = keys - {*changed}
    shared = [*changed, *(prompt.key for prompt in after.prompts if prompt.key in unchanged)]
    prompt = params.get("prompt") or next(iter(shared), None)
    return {
        "runs": shown,
        "changes": changes,
        "prompts": shared[:MAX_SHARED_PROMPTS],
        "prompt": prompt,
        "samples": [_samples(side, prompt) for side in known] if prompt in shared else [],
    }


def _last_evaluation(directory: Path) -> Evaluated | None:
    """The run's last evaluation; None if the run was not evaluated, or cannot be read."""
    try:
        with RunReader(directory) as reader:
            evals = reader.evals()
            return read_evaluated(reader, evals[-1].version) if evals else None
    except StoreError:
        return None


def _other_prompts(before: Evaluated, after: Evaluated) -> set[str]:
    """Keys that belong to different prompts in the two runs."""
    answers = {row.key: row.answer for row in before.completions}
    return {row.key for row in after.completions if answers.get(row.key, row.answer) != row.answer}


def _samples(side: Evaluated, key: str | None) -> list[dict[str, Any]]:
    rows = [row for row in side.completions if row.key == key]
    return [about_prompt(row) | outcome_of(row) for row in rows[:MAX_SAMPLES]]
