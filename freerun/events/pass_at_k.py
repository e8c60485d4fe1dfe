"""Accuracy from samples: pass@k without bias, and an interval that knows what was independent.

    pass@k = mean over problems of  1 - C(n - c, k) / C(n, k)          n samples, c of them right

is the chance that at least one of k samples is right, as if k had been drawn again and again from the n that
there are (the estimator of the HumanEval paper); pass@1 = c / n is also mean@n.

**The interval** (95 %) answers for other problems of the same kind, so the problem is the unit: samples of one
problem are not independent, and 8 samples of 20 problems are not 160 observations. It is Wilson's interval for
the effective number of observations, which is the number of problems times p (1 - p) / (variance between
problems): a problem that is always right or always wrong counts once, one that comes out by chance up to n / k
times. Unlike a bootstrap over the problems it does not collapse to a point when all are right, and it needs no
random numbers. Few problems make it honest, that is wide: see docs/evaluation.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Z_95 = 1.959964
"""Quantile of the normal distribution that leaves 2.5 % on either side."""


class Estimate(NamedTuple):
    """A rate between 0 and 1, with its 95 % interval; all nan if there was nothing to estimate it from."""

    value: float
    low: float
    high: float


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that one of `k` samples is right, given how many of `num_samples` were."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def estimate_pass_at_k(results: Sequence[tuple[int, int]], k: int) -> Estimate:
    """pass@k over problems, each given as (number of samples, number right)."""
    values = [pass_at_k(num_samples, num_correct, k) for num_samples, num_correct in results]
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    rate = sum(values) / len(values)
    return Estimate(rate, *_wilson(rate, _effective_number(values, sum(n for n, _ in results) / k)))


def _effective_number(values: Sequence[float], most: float) -> float:
    """Independent right-or-wrong observations that would be as uncertain: from the problems' number to `most`."""
    num_problems, rate = len(values), sum(values) / len(values)
    spread = sum((value - rate) ** 2 for value in values)
    if num_problems < 2 or spread == 0:
        # Nothing differs, so nothing says how much it would: the problems themselves are what there is.
        return num_problems
    variance = spread / (num_problems - 1)
    return max(num_problems, min(num_problems * rate * (1 - rate) / variance, most))


def _wilson(rate: float, number: float) -> tuple[float, float]:
    z2 = Z_95**2 / number
    centre = (rate + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (rate * (1 - rate) + z2 / 4)) / (1 + z2)
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))
