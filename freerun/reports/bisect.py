"""Bisect: the steps in which a run collapsed, and the samples that carried them.

    metric ─► where it fell (`collapse.py`) ─► which versions sampled that ─► steps that made them ─► samples

A reward that falls at step k was earned by completions of earlier versions. If the last good batch has tokens
of version u at the earliest, and the first bad one tokens of version v at the latest, then the steps to u + 1
... v are suspect. A sample's contribution to their updates is its advantage times the behaviour weights of its
tokens, without tokens held back by the trust region.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from freerun.errors import FreerunError
from freerun.events.reader import RunReader
from freerun.events.schema import StepRow, TrajectoryRow
from freerun.replay.difference import TIMED
from freerun.reports.collapse import EvalFall, Fall, find_eval_fall, find_fall, step_noise

HELD_OUT_METRIC = "held-out"
MORE_IS_WORSE = {
    "grad_norm", "reference_kl", "engine_trainer_kl", "behaviour_weight_max", "clip_fraction", "cut_off_share",
    "empty_share", "equal_group_share", "masked_fraction", "skipped_updates", "staleness_mean", "staleness_max",
    "value_loss",
}  # fmt: skip
MEASURED_BY_TRAINER = {
    "entropy", "exact_entropy", "loss", "grad_norm", "reference_kl", "engine_trainer_kl", "behaviour_weight_mean",
    "behaviour_weight_max", "effective_sample_size", "clip_fraction", "masked_fraction", "value_loss",
    "explained_variance", "lr", "num_updates", "skipped_updates",
}  # fmt: skip
"""Metrics of a step's starting weights or of its update, not of what was sampled earlier."""
MAX_STEPS = 10
"""Limit on the steps whose samples are examined."""
NUM_BEFORE = 10
NUM_COMPANIONS = 4
MIN_NOISES = 4.0
"""A metric counts as changed if it left its median by this many times its noise."""


@dataclass(frozen=True)
class Companion:
    """Another metric that changed in the same steps."""

    name: str
    before: float
    after: float
    num_noises: float


@dataclass(frozen=True)
class Carrier:
    """A trajectory with a large contribution."""

    row: TrajectoryRow
    pull: float
    """Advantage times the sum of its tokens' weights."""
    share: float
    """Share of the absolute pulls of all trajectories of these steps."""
    largest_weight: float


@dataclass(frozen=True)
class Bisection:
    """The findings; all fields are empty if there was no fall."""

    metric: str
    num_points: int
    fall: Fall | None = None
    eval_fall: EvalFall | None = None
    samplers: str = ""
    """The versions that sampled the last good and the first bad batch, as text."""
    steps: range = range(0)
    """The suspect steps."""
    companions: tuple[Companion, ...] = ()
    carriers: tuple[Carrier, ...] = ()
    lr: float | None = None
    """The learning rate of the first of these steps, if it made an update."""

    @property
    def is_found(self) -> bool:
        return self.fall is not None or self.eval_fall is not None


def bisect_run(
    directory: Path, metric: str, *, first: int | None = None, last: int | None = None, limit: int = 5
) -> Bisection:
    """Look for a collapse of the metric in the steps `first` to `last`."""
    with RunReader(directory) as reader:
        steps = [s for s in reader.steps() if (first or 0) <= s.version <= (last or math.inf)]
        if not steps:
            raise FreerunError(f'the run "{directory}" has no recorded step there; "freerun show" says which')
        if metric == HELD_OUT_METRIC or not metric:
            evals = [e for e in reader.evals() if (first or 0) <= e.version <= (last or math.inf)]
            if metric or len(evals) > 2:
                eval_fall = find_eval_fall(evals)
                found = Bisection(HELD_OUT_METRIC, len(evals), eval_fall=eval_fall)
                return _explained(reader, steps, _narrowed(found, steps), limit) if eval_fall else found
        return _bisect_metric(reader, steps, metric or "reward", limit)


def _bisect_metric(reader: RunReader, steps: Sequence[StepRow], metric: str, limit: int) -> Bisection:
    points = _series(steps, metric)
    if not points:
        names = ", ".join(sorted({name for step in steps for name in step.metrics if not name.endswith(TIMED)}))
        raise FreerunError(f'no step has the metric "{metric}"; there are {HELD_OUT_METRIC}, {names}')
    fall = find_fall(points, is_less_worse=metric not in MORE_IS_WORSE)
    found = Bisection(metric, len(points), fall=fall)
    return _explained(reader, steps, found, limit) if fall else found


def _series(steps: Sequence[StepRow], metric: str) -> list[tuple[int, float]]:
    return [(step.version, step.metrics[metric]) for step in steps if metric in step.metrics]


def _narrowed(found: Bisection, steps: Sequence[StepRow]) -> Bisection:
    """Add the fall of the reward, if there is one between the two evaluations or soon after."""
    assert found.eval_fall is not None
    fall = find_fall(_series(steps, "reward"))
    age = max((step.metrics.get("staleness_max", 0.0) for step in steps), default=0.0)
    good, bad = found.eval_fall.last_good.version, found.eval_fall.first_bad.version
    if fall is None or not good < fall.begin <= bad + age + 1:
        return found
    return dataclasses.replace(found, fall=fall)


def _explained(reader: RunReader, steps: Sequence[StepRow], found: Bisection, limit: int) -> Bisection:
    (first, last), samplers = _guilty_steps(reader, found)
    first = max(first, steps[0].version, last - MAX_STEPS + 1)
    guilty = range(first, last + 1)
    return dataclasses.replace(
        found,
        samplers=samplers,
        steps=guilty,
        companions=tuple(_companions(steps, first, last, but=found.metric)),
        carriers=tuple(_carriers(reader, guilty, limit)),
        lr=next((step.metrics.get("lr") for step in steps if step.version == first), None),
    )


def _guilty_steps(reader: RunReader, found: Bisection) -> tuple[tuple[int, int], str]:
    """The steps whose versions may be in the first bad batch but not in the last good one."""
    fall, evals = found.fall, found.eval_fall
    if fall is None:
        assert evals is not None
        return (evals.last_good.version + 1, evals.first_bad.version), ""
    if evals is None and found.metric in MEASURED_BY_TRAINER:
        return (max(1, fall.begin - 1), fall.begin), ""
    good, bad = _versions(reader, fall.last_good), _versions(reader, fall.begin)
    samplers = (
        f"step {fall.last_good} trained on samples of versions {good[0]} to {good[1]}, "
        f"step {fall.begin} on samples of versions {bad[0]} to {bad[1]}"
    )
    first, last = good[0] + 1, max(bad[1], good[0] + 1)
    if evals is not None:
        last = min(last, evals.first_bad.version)  # later steps cannot be the cause
        first = min(max(first, evals.last_good.version + 1), last)
    return (max(1, first), last), samplers


def _versions(reader: RunReader, step: int) -> tuple[int, int]:
    """The oldest and the newest version that sampled a token of the step's batch."""
    found = [span.version for row in reader.trajectories(step) for span in row.spans if span.version is not None]
    return (min(found), max(found)) if found else (step - 1, step - 1)


def _carriers(reader: RunReader, steps: range, limit: int) -> list[Carrier]:
    rows = [row for step in steps for row in reader.trajectories(step) if math.isfinite(row.advantage)]
    pulls = [pull_of(row) for row in rows]
    total = math.fsum(abs(pull) for pull, _ in pulls) or 1.0
    ranked = sorted(zip(rows, pulls, strict=True), key=lambda item: -abs(item[1][0]))
    return [Carrier(row, pull, abs(pull) / total, largest) for row, (pull, largest) in ranked[:limit] if pull]


def pull_of(row: TrajectoryRow) -> tuple[float, float]:
    """Advantage times the summed weights of its unclipped tokens, and the largest of these weights."""
    num_sampled = sum(span.num_tokens for span in row.spans if span.version is not None)
    weights = np.ones(num_sampled)
    if row.log_weights.size == num_sampled:
        weights = np.exp(np.clip(row.log_weights.astype(np.float64), -50, 50))
    held_back = row.clipped[row.clipped < num_sampled]
    weights[held_back] = 0.0
    return float(row.advantage * weights.sum()), float(weights.max(initial=0.0))


def _companions(steps: Sequence[StepRow], first: int, last: int, *, but: str) -> list[Companion]:
    """Metrics that left their usual range in these steps or right after, the largest change first."""
    found = []
    names = {name for step in steps for name in step.metrics if not name.endswith(TIMED) and name != but}
    for name in sorted(names):
        series = _series(steps, name)
        before = np.array([value for step, value in series if step < first][-NUM_BEFORE:])
        after = [value for step, value in series if first <= step <= last + 1]
        if len(before) < 4 or not after:
            continue
        centre = float(np.median(before))
        extreme = max(after, key=lambda value: abs(value - centre))
        noise = max(step_noise(before), 1e-3 * abs(centre), 1e-9)
        if (num_noises := abs(extreme - centre) / noise) >= MIN_NOISES:
            found.append(Companion(name, centre, extreme, num_noises))
    return sorted(found, key=lambda companion: -companion.num_noises)[:NUM_COMPANIONS]
