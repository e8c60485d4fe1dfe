"""Averages several runs to one curve over a common axis, with the interval over seeds.

Runs have no common grid: seconds never agree, and a run may skip an evaluation. Each run is interpolated
linearly, and the lines are averaged where all of them are defined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from freerun.reports.intervals import t_interval
from freerun.reports.record import Point

Numbers = NDArray[np.float64]
Axis = Literal["step", "seconds", "trained_tokens"]
MAX_POINTS = 60
"""Points per curve. Longer series are averaged over consecutive steps to show the trend."""


@dataclass(frozen=True)
class Curve:
    """Points of the mean; `low` and `high` are nan for a single seed."""

    x: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


def mean_curve(
    runs: Sequence[Sequence[Point]], axis: Axis, *, bin_size: int = 1, seeds: Sequence[int] = ()
) -> Curve | None:
    """The mean over the runs that have points, from where the last one begins to where the first one ends.

    `seeds` has the seed of each run: runs with the same seed count once, as their mean. By default all differ.
    """
    seed_of_line = [seed for seed, points in zip(seeds or range(len(runs)), runs, strict=True) if points]
    lines = [_line(points, axis, bin_size) for points in runs if points]
    if not lines:
        return None
    begin, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    knots = np.unique(np.concatenate([x for x, _ in lines]))
    grid = knots[(knots >= begin) & (knots <= end)]
    of_lines = np.array([np.interp(grid, x, y) for x, y in lines])
    values = np.array(
        [of_lines[np.array(seed_of_line) == seed].mean(axis=0) for seed in dict.fromkeys(seed_of_line)]
    )
    estimates = [t_interval(column.tolist()) for column in values.T]
    mean, low, high = (np.array([getattr(e, name) for e in estimates]) for name in ("value", "low", "high"))
    return Curve(grid, mean, low, high)


def bin_size_for(runs: Sequence[Sequence[Point]]) -> int:
    """How many consecutive points to average to fit the longest run into `MAX_POINTS`."""
    return max(1, -(-max((len(points) for points in runs), default=0) // MAX_POINTS))


def _line(points: Sequence[Point], axis: Axis, bin_size: int) -> tuple[Numbers, Numbers]:
    x = np.array([getattr(point, axis) for point in points], np.float64)
    y = np.array([point.value for point in points], np.float64)
    edges = np.arange(0, len(points), bin_size)
    counts = np.diff(np.append(edges, len(points)))
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts
