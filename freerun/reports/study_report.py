"""What a study found: every run's numbers, every condition's means with intervals over seeds, and the figure."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from freerun.events.accuracy import percent
from freerun.processes.placement import place
from freerun.reports.drawing import draw_by_eta
from freerun.reports.intervals import Estimate, t_interval
from freerun.reports.paired import by_condition, contrasts, speedup
from freerun.reports.record import RunNumbers, RunRecord
from freerun.reports.study import Condition, Study
from freerun.reports.tables import (
    accuracy_with_interval,
    brief,
    escape_markdown,
    markdown,
    number,
    with_interval,
    write_csv,
)

HEADER = (
    "objective", "η", "seeds", "held-out", "best held-out", "tok/s", "seconds", "staleness", "max staleness",
    "clipped", "effective sample size", "speed",
)  # fmt: skip
MAX_CONTRASTED = 3
"""Objectives that are compared in pairs below the table; more would be a list of chance findings."""
SHORT_COLUMNS = (0, 1, 2, 3, 5, 7, 8)
"""Those that fit on a terminal."""
CSV_NUMBERS = tuple(f.name for f in dataclasses.fields(RunNumbers) if f.name != "metrics")
CSV_METRICS = ("clip_fraction", "effective_sample_size", "reward", "completion_length")


@dataclass(frozen=True)
class ConditionSummary:
    """One line of the table: means over the finished seeds of a condition."""

    condition: Condition
    final_accuracy: Estimate
    best_accuracy: Estimate
    tokens_per_second: Estimate
    seconds: float
    staleness_mean: float
    staleness_max: float
    """The greatest of any seed."""
    metrics: dict[str, float]
    speedup: Estimate
    """Tokens per second over those of eta = 0, seed by seed."""


def summarise_conditions(study: Study, records: Mapping[str, RunRecord]) -> list[ConditionSummary]:
    """Every condition of the study, those without a finished run included."""
    numbers = {name: record.numbers() for name, record in records.items()}
    paired = by_condition(study, numbers)
    summaries = []
    for objective in study.objectives:
        for eta in study.etas:
            condition = Condition(eta, objective)
            found = [numbers[r.name] for r in study.runs if r.condition == condition and r.name in numbers]
            summaries.append(_summarise(condition, found, speedup(study, paired, condition)))
    return summaries


def _summarise(condition: Condition, found: Sequence[RunNumbers], speed: Estimate) -> ConditionSummary:
    names = {name for run in found for name in run.metrics}
    return ConditionSummary(
        condition=condition,
        final_accuracy=t_interval([run.final_accuracy for run in found]),
        best_accuracy=t_interval([run.best_accuracy for run in found]),
        tokens_per_second=t_interval([run.tokens_per_second for run in found]),
        seconds=t_interval([run.seconds for run in found]).mean,
        staleness_mean=t_interval([run.staleness_mean for run in found]).mean,
        staleness_max=max(
            (run.staleness_max for run in found if math.isfinite(run.staleness_max)), default=math.nan
        ),
        metrics={
            name: t_interval([run.metrics.get(name, math.nan) for run in found]).mean for name in sorted(names)
        },
        speedup=speed,
    )


def table_rows(summaries: Sequence[ConditionSummary]) -> list[list[str]]:
    """The cells under `HEADER`."""
    return [
        [
            s.condition.objective,
            "∞" if s.condition.eta == "inf" else s.condition.eta,
            str(s.final_accuracy.num),
            accuracy_with_interval(s.final_accuracy),
            accuracy_with_interval(s.best_accuracy),
            with_interval(s.tokens_per_second, 0),
            number(s.seconds, 1),
            number(s.staleness_mean, 2),
            number(s.staleness_max, 0),
            number(s.metrics.get("clip_fraction", math.nan), 4),
            number(s.metrics.get("effective_sample_size", math.nan), 3),
            with_interval(s.speedup, 2),
        ]
        for s in summaries
    ]


def write_report(
    study: Study, records: Mapping[str, RunRecord], failures: Mapping[str, str], command: Sequence[str]
) -> None:
    """Write everything the study has found so far; what was there before is replaced."""
    study.directory.mkdir(parents=True, exist_ok=True)
    summaries = summarise_conditions(study, records)
    write_json(study, records, failures, command)
    _write_runs(study, records)
    caption = _caption(study, records, failures)
    (study.directory / "table.md").write_text(markdown(HEADER, table_rows(summaries)) + caption, encoding="utf-8")
    _draw(study, records, summaries)


def write_json(
    study: Study, records: Mapping[str, RunRecord], failures: Mapping[str, str], command: Sequence[str]
) -> None:
    """The raw numbers of every run, and on what they were measured."""
    runs = [_run_facts(study, run.name, records, failures) for run in study.runs]
    facts = {
        "study": "staleness",
        "recipe": str(study.recipe_path),
        "command": list(command),
        "etas": study.etas,
        "objectives": study.objectives,
        "seeds": study.seeds,
        "num_steps": study.recipe.train.num_steps,
        "warm_start_steps": study.recipe.warm_start.num_steps,
        "machine": machine_facts(study),
        "conditions": [dataclasses.asdict(summary) for summary in summarise_conditions(study, records)],
        "runs": runs,
    }
    text = json.dumps(_without_nan(facts), indent=2, allow_nan=False)
    (study.directory / "study.json").write_text(text + "\n", encoding="utf-8")


def machine_facts(study: Study) -> dict[str, Any]:
    """What the speed depends on."""
    recipe = study.recipe
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "rollout_workers": recipe.engine.num_workers,
        "threads": {name: seat.num_threads for name, seat in place(recipe).seats.items()},
    }


def _run_facts(
    study: Study, name: str, records: Mapping[str, RunRecord], failures: Mapping[str, str]
) -> dict[str, Any]:
    run = next(run for run in study.runs if run.name == name)
    facts: dict[str, Any] = {
        "name": name,
        "eta": run.condition.eta,
        "max_staleness": run.recipe.buffer.max_staleness,
        "objective": run.condition.objective,
        "seed": run.seed,
        "state": "finished" if name in records else "failed" if name in failures else "not finished",
    }
    if name in failures:
        facts |= {"error": failures[name]}
    if name in records:
        facts |= dataclasses.asdict(records[name].numbers())
        facts["held_out"] = [[row.version, row.accuracy] for row in records[name].evals]
    return facts


def _write_runs(study: Study, records: Mapping[str, RunRecord]) -> None:
    """One row per finished run."""
    header = ("run", "eta", "max_staleness", "objective", "seed", *CSV_NUMBERS, *CSV_METRICS)
    rows = []
    for run in study.runs:
        if run.name in records:
            found = records[run.name].numbers()
            identity = (
                run.name,
                run.condition.eta,
                run.recipe.buffer.max_staleness,
                run.condition.objective,
                run.seed,
            )
            values = [getattr(found, name) for name in CSV_NUMBERS]
            rows.append((*identity, *values, *(found.metrics.get(name, math.nan) for name in CSV_METRICS)))
    write_csv(study.directory / "study.csv", header, rows)


def _caption(study: Study, records: Mapping[str, RunRecord], failures: Mapping[str, str]) -> str:
    recipe = study.recipe
    start = "the same warm-started model" if study.warm else f"`{recipe.model.path}`"
    lines = [
        f"{len(records)} of {len(study.runs)} runs finished: {recipe.train.num_steps} steps of "
        f"{recipe.batch_size} trajectories each, all from {start}. ± is the 95 % t interval over seeds. "
        "held-out: accuracy of the last version; best held-out: of the best version evaluated; tok/s: completion "
        "tokens trained on by seconds of training; staleness: of the trajectories trained on, which η only "
        "bounds; clipped: share of tokens held back by the trust region; effective sample size: of the behaviour "
        "weights, 1 is on-policy; speed: tok/s over that of η = 0 with the same objective and seed."
    ]
    numbers = {name: record.numbers() for name, record in records.items()}
    differences = contrasts(study, by_condition(study, numbers)) if len(study.objectives) <= MAX_CONTRASTED else []
    if differences:
        told = "; ".join(f"{escape_markdown(label)}: {_signed(found)}" for label, found in differences)
        lines.append(
            "Differences of held-out accuracy in percentage points, paired by seed, each seed's mean over all "
            f"η > 0: {told}."
        )
    before = _before_training(records)
    if math.isfinite(before):
        lines.append(f"Held-out accuracy before training: {percent(before)}.")
    lines += [f"Failed: {escape_markdown(name)}: {escape_markdown(brief(why))}" for name, why in failures.items()]
    return "".join(f"\n{line}\n" for line in lines)


def _signed(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:+.1f} ± {100 * estimate.half_width:.1f}"


def _draw(study: Study, records: Mapping[str, RunRecord], summaries: Sequence[ConditionSummary]) -> None:
    by_objective = {o: [s for s in summaries if s.condition.objective == o] for o in study.objectives}
    draw_by_eta(
        study.etas,
        {objective: [s.final_accuracy for s in found] for objective, found in by_objective.items()},
        {objective: [s.tokens_per_second for s in found] for objective, found in by_objective.items()},
        before_training=_before_training(records),
        path=study.directory / "study.png",
    )


def _before_training(records: Mapping[str, RunRecord]) -> float:
    return t_interval([record.numbers().first_accuracy for record in records.values()]).mean


def _without_nan(value: Any) -> Any:
    """JSON knows no nan: what is not a number becomes null."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
