"""Accuracy from samples: unbiased pass@k, and an interval that respects which samples are independent.

    pass@k = mean over prompts of  1 - C(n - c, k) / C(n, k)          n samples, c of them right

is the probability that at least one of k samples is right, averaged over all choices of k of the n samples (the
estimator of the HumanEval paper); pass@1 = c / n is also mean@n.

**The interval** (95 %) answers for other prompts of the same kind, so the prompt is the unit: samples of one
prompt are not independent, and 8 samples of 20 prompts are not 160 observations. It is Wilson's interval for
the effective number of observations, which is the number of prompts times p (1 - p) / (variance between
prompts): a prompt that is always right or always wrong counts once, one that comes out by chance up to n / k
times. Unlike a bootstrap over prompts it does not collapse to a point when all are right, and it needs no random
numbers. With few prompts it is wide: see docs/evaluation.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

Z_95 = 1.959964
"""Quantile of the normal distribution that leaves 2.5 % on either side."""


class Estimate(NamedTuple):
    """A value with its 95 % interval; nan where there was nothing to estimate it from."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that one of `k` samples is right, given how many of `num_samples` were."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def estimate_pass_at_k(results: Sequence[tuple[int, int]], k: int) -> Estimate:
    """pass@k over prompts, each given as (number of samples, number right)."""
    values = [pass_at_k(num_samples, num_correct, k) for num_samples, num_correct in results]
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    rate = sum(values) / len(values)
    return Estimate(rate, *wilson(rate, effective_number(values, sum(n for n, _ in results) / k)))


def effective_number(values: Sequence[float], most: float) -> float:
    """The equivalent number of independent observations: from the number of prompts to `most`."""
    num_prompts, rate = len(values), sum(values) / len(values)
    spread = sum((value - rate) ** 2 for value in values)
    if num_prompts < 2 or spread == 0:
        # Without variation between prompts there is no estimate of it: count each prompt once.
        return num_prompts
    variance = spread / (num_prompts - 1)
    return max(num_prompts, min(num_prompts * rate * (1 - rate) / variance, most))


def wilson(rate: float, number: float) -> tuple[float, float]:
    """Wilson's interval for a rate seen in `number` independent observations."""
    z2 = Z_95**2 / number
    centre = (rate + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (rate * (1 - rate) + z2 / 4)) / (1 + z2)
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))
