"""Finds where a replayed step differs from the recorded one: weights, metrics, or trajectories.

Metrics of time always differ, and those of the controller are not the trainer's: both are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from freerun.controller import step_facts
from freerun.events.schema import StepRow, TrajectoryRow
from freerun.types import StepResult, TrainedTrajectory

TIMED = ("_seconds", "_per_second")
DISAGREEMENT = "engine_trainer_kl"
"""Compares engine and trainer at the same version. A what-if lacks it: the engines had other weights."""


@dataclass(frozen=True)
class Difference:
    """The first version that differs from the recorded one."""

    version: int
    lines: tuple[str, ...]
    """The differences, as text for people."""


def compare_step(
    result: StepResult, checksum: str, *, step: StepRow, rows: Sequence[TrajectoryRow], recorded_checksum: str
) -> Difference | None:
    """The difference; None if weights, metrics and trajectories equal the recorded ones, as far as recorded."""
    lines: list[str] = []
    if recorded_checksum and checksum != recorded_checksum:
        lines.append(f"its checksum is {checksum}, recorded was {recorded_checksum}")
    metric, trajectory = _first_metric(result, step), _first_trajectory(result.trajectories, rows)
    if not (lines or metric or trajectory):
        return None
    if not lines:
        known = "has the recorded checksum" if recorded_checksum else "has no recorded checksum"
        lines.append(f"it {known}, but its step was another")
    lines.append(metric or "all metrics of its step are the recorded ones")
    return Difference(result.version, (*lines, trajectory) if trajectory else tuple(lines))


def _first_metric(result: StepResult, step: StepRow) -> str:
    """The first metric that differs, in the trainer's order; empty if none does."""
    names = [*result.metrics, *(name for name in step.metrics if name not in result.metrics)]
    for name in names:
        now, then = result.metrics.get(name), step.metrics.get(name)
        if name.endswith(TIMED) or name in step_facts.METRICS or (name == DISAGREEMENT and then is None):
            continue
        if not _is_same(now, then):
            return f"the first metric that differs is {name}: {_shown(now)}, recorded was {_shown(then)}"
    return ""


def _first_trajectory(trained: Sequence[TrainedTrajectory], rows: Sequence[TrajectoryRow]) -> str:
    for now, row in zip(trained, rows, strict=False):
        who = f"the first trajectory that differs is sample {row.sample} of prompt {row.ordinal} ({row.key})"
        if not _is_same(now.advantage, row.advantage):
            return f"{who}: advantage {_shown(now.advantage)}, recorded was {_shown(row.advantage)}"
        if not np.array_equal(now.log_weights, row.log_weights, equal_nan=True):
            return f"{who}: other behaviour weights"
        if now.num_clipped != row.num_clipped:
            return f"{who}: {now.num_clipped} clipped tokens, recorded were {row.num_clipped}"
    return ""


def _is_same(now: float | None, then: float | None) -> bool:
    return now == then or (now is not None and then is not None and math.isnan(now) and math.isnan(then))


def _shown(value: float | None) -> str:
    return "missing" if value is None else repr(value)
