"""The steps and metrics that the health rules look at, and their wording."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Literal

from freerun.events.kept_facts import Step
from freerun.events.metrics import NUM_FIRST_STEPS, RunState

Severity = Literal["alarm", "warn", "info"]
Complaint = tuple[Severity, str, str, str]
"""Severity, text, advice, evidence: the fields of a `Finding`."""
WINDOW = 10
"""Number of steps that a rule about metrics looks at."""
MIN_STEPS = 5
"""Minimum number of steps for a rule, unless the run has ended."""


def window(state: RunState) -> list[Step]:
    """The last steps; none while there are too few to judge."""
    steps = list(state.last_steps)[-WINDOW:]
    return steps if len(steps) >= MIN_STEPS or state.finished else []


def is_past_start(state: RunState) -> bool:
    """Whether the window does not overlap with the first steps."""
    return state.num_steps_seen >= WINDOW + NUM_FIRST_STEPS


def values_of(steps: Iterable[Step], name: str) -> list[float]:
    """The metric's values in the steps that have it; non-finite values are ignored."""
    values = (step.result.metrics.get(name, math.nan) for step in steps)
    return [value for value in values if math.isfinite(value)]


def mean_of(steps: Sequence[Step], name: str) -> float | None:
    values = values_of(steps, name)
    return mean(values) if values else None


def newest(state: RunState, name: str) -> float | None:
    values = values_of(state.last_steps, name)
    return values[-1] if values else None


def first_of(state: RunState, name: str) -> float | None:
    values = values_of(state.first_steps, name)
    return median(values) if values else None


def recent(state: RunState, name: str) -> float | None:
    """Median over the last few steps: one odd step is not a trend."""
    values = values_of(window(state)[-MIN_STEPS:], name)
    return median(values) if values else None


def falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(values))


def step_seconds(state: RunState) -> float:
    """Median time from one step to the next."""
    return median([step.step_seconds + step.wait_seconds for step in state.last_steps] or [math.inf]) or 1e-9


def plural(number: float, noun: str) -> str:
    """Format as `1 update`, `3 updates`."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def name_steps(steps: Sequence[Step]) -> str:
    first, last = steps[0].result.version, steps[-1].result.version
    return f"step {last}" if first == last else f"steps {first}-{last}"


def percent_of(share: float) -> str:
    return f"{100 * share:.0f} %"


def samples_at(step: Step, *, order: str = "reward", where: str = "") -> str:
    condition = f"&where={where}" if where else ""
    return f"#/samples?step={step.result.version}&order={order}{condition}"
