"""Least squares with non-negative factors, since more work never takes less time."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np


def fit_times(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Factors of the columns that fit `seconds`, and the root mean square error relative to the mean.

    Errors are not taken relative to each time: disturbances are part of the total, and times near zero would
    dominate. There are few columns, so every subset is tried, and the best one without a negative factor is
    taken.
    """
    counts, wanted = np.array(rows, float), np.array(seconds, float)
    scaled, target = counts / wanted.mean(), wanted / wanted.mean()
    best_error, best = math.inf, np.zeros(counts.shape[1])
    for size in range(1, counts.shape[1] + 1):
        for columns in combinations(range(counts.shape[1]), size):
            found, *_ = np.linalg.lstsq(scaled[:, columns], target, rcond=None)
            error = float(np.mean((scaled[:, columns] @ found - target) ** 2))
            if (found >= 0).all() and error < best_error - 1e-12:
                best_error, best = error, np.zeros(counts.shape[1])
                best[list(columns)] = found
    return [float(factor) for factor in best], math.sqrt(best_error)
