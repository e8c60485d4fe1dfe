"""Reduces a curve to the number of points that a screen can show, without losing extremes."""

import math
from collections.abc import Sequence

MAX_SHOWN_POINTS = 1000


def binned(values: Sequence[float | None], num_bins: int) -> list[tuple[float, float, float] | None]:
    """Minimum, mean and maximum of consecutive values, per bin; None if no value of the bin is known."""
    bins: list[tuple[float, float, float] | None] = []
    for i in range(num_bins):
        part = values[i * len(values) // num_bins : (i + 1) * len(values) // num_bins]
        known = [value for value in part if value is not None and math.isfinite(value)]
        bins.append((min(known), sum(known) / len(known), max(known)) if known else None)
    return bins


def last_of_bins(num_values: int, num_bins: int) -> list[int]:
    """The index of the last value of each bin of `binned`."""
    return [(i + 1) * num_values // num_bins - 1 for i in range(num_bins)]
