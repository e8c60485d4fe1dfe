"""Curves: every metric over steps, seconds and tokens, held-out accuracy, and where an alarm began.

A run of more than `MAX_SHOWN_POINTS` steps is shown in bins: the mean of each, with its extremes as a band.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from freerun.dashboard.decimate import MAX_SHOWN_POINTS, binned, last_of_bins
from freerun.dashboard.source import Source, finite
from freerun.events.events import EvalRow
from freerun.events.schema import StepRow

ALARM_METRICS = {
    "nothing_learned": "held_out",
    "held_out_fell": "held_out",
    "held_out_gap": "held_out",
    "equal_groups": "equal_group_share",
    "no_update": "grad_norm",
    "effective_sample_size": "effective_sample_size",
    "gradient": "grad_norm",
    "disagreement": "engine_trainer_kl",
    "empty": "empty_share",
    "cut_off": "cut_off_share",
    "variety": "distinct_text_share",
    "entropy": "entropy",
    "length": "completion_length",
    "one_part": "reward",
    "grader": "reward",
    "bound": "staleness_max",
    "at_the_bound": "staleness_mean",
    "limit": "wait_seconds",
}
"""The curve on which a health rule marks the step where its alarm began."""


def steps_feed(source: Source, params: Mapping[str, str]) -> object:
    """Every metric of every step."""
    with source.reader() as reader:
        steps, evals = reader.steps(), reader.evals()
    return curves_of(steps, evals) | {"alarms": _alarms(source)}


def curves_of(steps: Sequence[StepRow], evals: Sequence[EvalRow]) -> dict[str, object]:
    """`x` has the axes; `metrics` has a mean per point, and a band if points stand for several steps."""
    names = list(dict.fromkeys(name for step in steps for name in step.metrics))
    columns: dict[str, list[float | None]] = {
        name: [finite(step.metrics.get(name)) for step in steps] for name in names
    }
    columns["step_seconds"] = [finite(step.step_seconds) for step in steps]
    columns["wait_seconds"] = [finite(step.wait_seconds) for step in steps]
    tokens = list(accumulate(step.metrics.get("num_tokens", 0.0) for step in steps))
    num_points = min(len(steps), MAX_SHOWN_POINTS)
    shown = last_of_bins(len(steps), num_points) if steps else []
    return {
        "x": {
            "step": [steps[i].version for i in shown],
            "seconds": [finite(steps[i].seconds) for i in shown],
            "tokens": [finite(tokens[i], 9) for i in shown],
        },
        "metrics": {name: _curve(column, num_points) for name, column in columns.items()},
        "num_steps": len(steps),
        "evals": [_evaluation(row, steps, tokens) for row in evals],
    }


def _curve(values: Sequence[float | None], num_points: int) -> dict[str, list[float | None]]:
    if len(values) <= num_points:
        return {"mean": list(values)}
    bins = binned(values, num_points)
    low, mean, high = ([None if b is None else finite(b[i]) for b in bins] for i in range(3))
    return {"mean": mean, "low": low, "high": high}


def _evaluation(row: EvalRow, steps: Sequence[StepRow], tokens: Sequence[float]) -> dict[str, object]:
    """An evaluation is drawn at the step that made its version, not at the time it ended."""
    made = next((i for i, step in enumerate(steps) if step.version == row.version), None)
    return {
        "version": row.version,
        "seconds": finite(steps[made].seconds if made is not None else 0.0),
        "tokens": finite(tokens[made], 9) if made is not None else 0.0,
        "accuracy": finite(row.accuracy),
        "low": finite(row.accuracy_low),
        "high": finite(row.accuracy_high),
        "num_prompts": row.num_prompts,
        "num_samples": row.num_samples,
        "num_failed": row.num_failed,
        "mean_length": finite(row.mean_length),
    }


def _alarms(source: Source) -> list[dict[str, object]]:
    return [
        {
            "rule": mark.rule,
            "level": mark.level,
            "step": mark.step,
            "text": mark.text,
            "metric": ALARM_METRICS.get(mark.rule),
        }
        for mark in source.alarms
    ]
