"""95 % confidence intervals over seeds, by Student's t: mean ± t(n - 1) s / sqrt(n).

Another seed would fall elsewhere. The interval over the prompts of one evaluation is another one: it is recorded
with the evaluation (`events/pass_at_k.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; `low` and `high` are nan when one value is all there is."""

    mean: float
    low: float
    high: float
    num: int
    """Values that were averaged."""

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values; what is not a number says nothing and is left out."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    half = t_quantile(len(known) - 1) * math.sqrt(variance / len(known))
    return Estimate(mean, mean - half, mean + half, len(known))


@cache
def t_quantile(degrees: int) -> float:
    """The t with `LEVEL` of the distribution between -t and t, by bisection: scipy would be a heavy guest."""
    low, high = 0.0, 13.0  # one degree of freedom has the widest, 12.706
    for _ in range(60):
        middle = (low + high) / 2
        if central_probability(middle, degrees) < LEVEL:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def central_probability(t: float, degrees: int) -> float:
    """P(-t < T < t) for a whole number of degrees of freedom: a finite sum, exact for each parity."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(1 if is_odd else 0, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
