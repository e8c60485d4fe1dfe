"""Reports a study's results: the table of `freerun compare`, the effect of each key, a figure, all numbers."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import msgspec

from freerun.events.accuracy import percent
from freerun.events.pass_at_k import Estimate
from freerun.processes.placement import place
from freerun.reports.compare import CAPTION, COLUMNS, table_rows
from freerun.reports.drawing import draw_by_value
from freerun.reports.groups import RunGroup, differences, speedups, summarise
from freerun.reports.intervals import mean, t_interval
from freerun.reports.record import RunRecord
from freerun.reports.study import Study, StudyRun
from freerun.reports.tables import TABLE_FILE, markdown, number, points, with_interval, write_csv, write_table
from freerun.terminal.wording import brief

FILES = ("study.png", "study.csv", "study.json", TABLE_FILE)


@dataclass(frozen=True)
class Effect:
    """The effect of a key's value against its first value, over all values of the other keys, paired by seed."""

    key: str
    value: str
    first: str
    difference: Estimate
    """Difference in final accuracy."""
    speedup: Estimate


def effects(study: Study, groups: Sequence[RunGroup]) -> list[Effect]:
    """Effects of all values but the first of each key. A seed counts only if all its combinations are finished."""
    group_of = dict(zip(study.combinations(), groups, strict=True))
    found = []
    for index, (key, values) in enumerate(study.over.items()):
        for value in values[1:]:
            pairs = [
                (group, group_of[(*choice[:index], values[0], *choice[index + 1 :])])
                for choice, group in group_of.items()
                if choice[index] == value
            ]
            difference, speedup = (
                t_interval(_means([measure(*pair) for pair in pairs], study.num_seeds))
                for measure in (differences, speedups)
            )
            found.append(Effect(key, value, values[0], difference, speedup))
    return found


def _means(pairs: Sequence[Mapping[int, float]], num_seeds: int) -> list[float]:
    """The mean over all pairs for each seed; nan if one is missing."""
    return [sum(pair.get(seed, math.nan) for pair in pairs) / len(pairs) for seed in range(num_seeds)]


def write_report(
    study: Study, groups: Sequence[RunGroup], failures: Mapping[str, str], command: Sequence[str]
) -> None:
    """Write everything the study has found so far; an earlier report is replaced."""
    study.directory.mkdir(parents=True, exist_ok=True)
    records = {record.name: record for group in groups for record in group.records}
    text, notes = (
        CAPTION + _findings(study, groups),
        [f"{name} failed: {brief(why)}" for name, why in failures.items()],
    )
    write_table(study.directory / TABLE_FILE, [*COLUMNS], table_rows(summarise(groups)), text, notes)
    names = list(dict.fromkeys(name for record in records.values() for name in record.numbers))
    rows = [
        (run.name, *run.values, run.recipe.run.seed, *(records[run.name].numbers.get(n, math.nan) for n in names))
        for run in study.runs
        if run.name in records
    ]
    write_csv(study.directory / "study.csv", ("run", *study.over, "seed", *names), rows)
    facts = {
        "recipe": str(study.recipe_path),
        "command": command,
        "over": study.over,
        "num_seeds": study.num_seeds,
        "machine": machine_facts(study),
        "groups": summarise(groups),
        "effects": effects(study, groups),
        "runs": [_run_facts(study, run, records.get(run.name), failures.get(run.name)) for run in study.runs],
    }
    # msgspec writes nan, which JSON lacks, as null.
    (study.directory / "study.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    _draw(study, groups)


def _findings(study: Study, groups: Sequence[RunGroup]) -> str:
    num_finished, before = sum(len(group.records) for group in groups), _before_training(groups)
    text = f"\n{num_finished} of {len(study.runs)} runs finished."
    text += " All start from the same warm-started model." if study.warm else ""
    text += f" Held-out accuracy before training: {percent(before)}.\n" if math.isfinite(before) else "\n"
    if len(study.over) > 1:
        rows = [
            [
                f"{e.key}={e.value} vs. {e.first}",
                with_interval(e.difference, points),
                with_interval(e.speedup, number(2)),
            ]
            for e in effects(study, groups)
        ]
        text += "\nEach value against the first of its key, over all values of the other keys, paired by seed:\n\n"
        text += markdown(("effect of", "difference", "speed"), rows)
    return text


def _run_facts(study: Study, run: StudyRun, record: RunRecord | None, failure: str | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": run.name, "seed": run.recipe.run.seed}
    facts["values"] = dict(zip(study.over, run.values, strict=True))
    facts["state"] = "finished" if record else "failed" if failure else "not finished"
    facts |= {"error": failure} if failure else {}
    held_out = [[row.version, row.accuracy] for row in record.evals] if record else []
    return facts | ({"held_out": held_out, **record.numbers} if record else {})


def machine_facts(study: Study) -> dict[str, Any]:
    """Facts about the machine that affect speed."""
    recipe = study.runs[0].recipe
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "rollout_workers": recipe.engine.num_workers,
        "threads": {name: seat.num_threads for name, seat in place(recipe).seats.items()},
    }


def _draw(study: Study, groups: Sequence[RunGroup]) -> None:
    """Draw the first key along the axis, with a line for each combination of the others."""
    summaries = summarise(groups)
    (key, values), *others = study.over.items() or [("", [study.recipe_path.stem])]
    num_lines = len(groups) // len(values)
    labels = [
        " ".join(f"{other}={value}" for (other, _), value in zip(others, choice[1:], strict=True))
        for choice in study.combinations()[:num_lines]
    ]
    lines = {label: summaries[index::num_lines] for index, label in enumerate(labels)}
    draw_by_value(study.directory / "study.png", key, values, lines, before_training=_before_training(groups))


def _before_training(groups: Sequence[RunGroup]) -> float:
    return mean(record.numbers["first_accuracy"] for group in groups for record in group.records)
