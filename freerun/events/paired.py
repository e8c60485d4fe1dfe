"""The difference of two evaluations of the same prompts, paired by prompt, and how sure it is.

**The interval** (95 %) is over prompts. With d the change of a prompt's share of right samples, the difference is
mean(max(d, 0)) - mean(max(-d, 0)): what was gained minus what was lost. Each of the two gets Wilson's interval, as
an accuracy does (`pass_at_k.py`), and both are combined by MOVER (Zou and Donner, 2008) with their correlation.
Unlike Student's t it does not shrink to a point when no prompt changed (decision 31).
"""

import math
from collections.abc import Sequence
from statistics import correlation

from freerun.events.pass_at_k import Estimate, effective_number, wilson


def paired_interval(paired: Sequence[float], num_samples: int) -> Estimate:
    """The mean change of prompts with at least `num_samples` samples each; see the module docstring."""
    if not paired:
        return Estimate(math.nan, math.nan, math.nan)
    gains, losses = [max(c, 0.0) for c in paired], [max(-c, 0.0) for c in paired]
    gain, gain_low, gain_high = _rate(gains, num_samples)
    loss, loss_low, loss_high = _rate(losses, num_samples)
    r = correlation(gains, losses) if any(gains) and any(losses) else 0.0
    low = _combined(gain - gain_low, loss_high - loss, r)
    high = _combined(gain_high - gain, loss - loss_low, r)
    return Estimate(gain - loss, gain - loss - low, gain - loss + high)


def _rate(values: Sequence[float], num_samples: int) -> Estimate:
    rate = math.fsum(values) / len(values)
    return Estimate(rate, *wilson(rate, effective_number(values, len(values) * num_samples)))


def _combined(first: float, second: float, r: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2 * r * first * second + second**2))
