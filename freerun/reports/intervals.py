"""95 % intervals over seeds by Student's t: mean ± t(n - 1) s / sqrt(n).

They describe where another seed would land. Intervals over prompts are in `events/pass_at_k.py`.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache

from freerun.events.pass_at_k import Estimate

LEVEL = 0.95


def mean(values: Iterable[float]) -> float:
    """The mean of the values that are not nan; nan if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values; nan values are left out, and a single value has no interval."""
    known = [value for value in values if math.isfinite(value)]
    centre = mean(known)
    if len(known) < 2:
        return Estimate(centre, math.nan, math.nan)
    variance = math.fsum((value - centre) ** 2 for value in known) / (len(known) - 1)
    half = t_quantile(len(known) - 1) * math.sqrt(variance / len(known))
    return Estimate(centre, centre - half, centre + half)


@cache
def t_quantile(degrees: int) -> float:
    """The t with `LEVEL` of the distribution between -t and t, by bisection, to avoid a scipy dependency."""
    low, high = 0.0, 13.0  # one degree of freedom has the largest, 12.706
    for _ in range(60):
        middle = (low + high) / 2
        if central_probability(middle, degrees) < LEVEL:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def central_probability(t: float, degrees: int) -> float:
    """P(-t < T < t) for an integer number of degrees of freedom: an exact, finite sum for each parity."""
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
