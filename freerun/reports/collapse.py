"""Finds where a series collapsed: it had a level, fell, and did not recover.

For step metrics, with x signed so that less is worse:

    the best level    the last place where the median of the newest w values was highest; w is an eighth of the
                      series, from 3 to 10
    the change point  from that window on, the k with the largest (mean before k - mean from k) sqrt(k (m - k) / m)
    the evidence      how many of 2,000 shuffles of the same m values have a change point as large; it must be at
                      most 1 in 100. The fall must also be twice the noise from step to step (the median of the
                      differences of neighbours), and a fifth of the range of the running median
    the beginning     the first value of the fall that is below the median before it by more than twice the noise
                      and a sixth of the fall

For held-out accuracy: the last evaluations, if their 95 % intervals all lie below that of the best one. A dip that
recovers is not a collapse.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freerun.events.events import EvalRow

MIN_POINTS = 8
MIN_AFTER = 3
MAX_CHANCE = 0.01
NUM_SHUFFLES = 2000
NOISE_FACTOR = 2.0
RANGE_SHARE = 0.2
FALL_SHARE = 1 / 6
SIGMA_OF_MAD = 1.4826

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Fall:
    """A change point in a metric of the steps."""

    last_good: int
    begin: int
    """The first step outside the usual range."""
    best: int
    """The first step at the previous level."""
    end: int
    """The last step that was examined."""
    before: float
    after: float
    """Means on both sides of the change point."""
    noise: float
    num_as_large: int
    """Out of `NUM_SHUFFLES`."""


@dataclass(frozen=True)
class EvalFall:
    """Two evaluations between which held-out accuracy fell for good."""

    last_good: EvalRow
    first_bad: EvalRow
    best: EvalRow


def find_fall(points: Sequence[tuple[int, float]], *, is_less_worse: bool = True) -> Fall | None:
    """The collapse of a metric, given by step; None if there is none."""
    known = [(step, value) for step, value in points if math.isfinite(value)]
    if len(known) < MIN_POINTS:
        return None
    steps, values = [step for step, _ in known], np.array([value for _, value in known])
    if not is_less_worse:
        values = -values
    width = min(10, max(3, len(values) // 8))
    levels = running_median(values, width)
    peak = len(levels) - 1 - int(np.argmax(levels[::-1]))  # the index of the window's first step
    tail = values[peak:]
    if len(tail) < width + MIN_AFTER:
        return None
    place, size = change_point(tail)
    before, after, noise = float(tail[:place].mean()), float(tail[place:].mean()), step_noise(values)
    if before - after < max(NOISE_FACTOR * noise, RANGE_SHARE * float(levels.max() - levels.min()), 1e-12):
        return None
    num_as_large = shuffles_as_large(tail, size)
    if num_as_large > MAX_CHANCE * NUM_SHUFFLES:
        return None
    begin = peak + beginning(tail, place, noise)
    sign = 1.0 if is_less_worse else -1.0
    return Fall(
        last_good=steps[begin - 1],
        begin=steps[begin],
        best=steps[peak],
        end=steps[-1],
        before=sign * before,
        after=sign * after,
        noise=noise,
        num_as_large=num_as_large,
    )


def find_eval_fall(evals: Sequence[EvalRow]) -> EvalFall | None:
    """The collapse of held-out accuracy; None if the last evaluation is not below the best."""
    known = [row for row in evals if math.isfinite(row.accuracy_low) and math.isfinite(row.accuracy_high)]
    best = max(known, key=lambda row: (row.accuracy, row.version), default=None)
    if best is None:
        return None
    bad: EvalRow | None = None
    for row in reversed(known):
        if row.version <= best.version or row.accuracy_high >= best.accuracy_low:
            return EvalFall(last_good=row, first_bad=bad, best=best) if bad is not None else None
        bad = row
    return None


def running_median(values: Values, width: int) -> Values:
    """The median of each window of this width."""
    medians: Values = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    return medians


def step_noise(values: Values) -> float:
    """The standard deviation of a value from its neighbours, without the trend; robust against outliers."""
    differences = np.diff(values)
    return SIGMA_OF_MAD * float(np.median(np.abs(differences - np.median(differences)))) / math.sqrt(2)


def change_point(values: Values) -> tuple[int, float]:
    """The place where the mean falls most, and the size of the fall in standard deviations of the noise."""
    sizes = _fall_sizes(values[None])[0]
    place = int(np.argmax(sizes))
    return place + 1, float(sizes[place])


def shuffles_as_large(values: Values, size: float) -> int:
    """How many of `NUM_SHUFFLES` orders of the values have a fall of at least this size."""
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(np.tile(values, (NUM_SHUFFLES, 1)), axis=1)
    return int((_fall_sizes(shuffled).max(axis=1) >= size).sum())


def beginning(values: Values, place: int, noise: float) -> int:
    """The first value of the fall: moves back from the change point, or forward while values are usual."""
    centre, fall = float(np.median(values[:place])), float(values[:place].mean() - values[place:].mean())
    limit = centre - max(NOISE_FACTOR * noise, FALL_SHARE * fall)
    begin = place
    while begin > 1 and values[begin - 1] < limit:
        begin -= 1
    while begin < len(values) - 1 and values[begin] >= limit:
        begin += 1
    return begin


def _fall_sizes(rows: Values) -> Values:
    """For each row and each place 1 ... m - 1: mean before minus mean from there, times sqrt(k (m - k) / m)."""
    length = rows.shape[1]
    places = np.arange(1, length)
    sums = np.cumsum(rows, axis=1)
    before = sums[:, :-1] / places
    after = (sums[:, -1:] - sums[:, :-1]) / (length - places)
    sizes: Values = (before - after) * np.sqrt(places * (length - places) / length)
    return sizes
