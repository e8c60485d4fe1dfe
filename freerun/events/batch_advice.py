"""Estimates how much more a run could train with larger steps, from its own measurements.

A training step takes a fixed time plus a time per token; each new version stops the engines for a load. With
larger steps both occur less often. The gain is an upper limit for both stages, and cautious: only the fixed
time that the steps prove counts. The effect of larger steps on learning is not included.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from freerun.events.bound_advice import MIN_GAIN_TOLD

LARGER = 4
"""Factor by which the prompts per step are increased."""
MIN_STEPS_COMPARED = 8
"""Minimum number of points for fitting a line."""


def fixed_seconds(points: Sequence[tuple[float, float]]) -> float:
    """The part of a step's seconds that does not grow with its tokens, less twice the standard error."""
    if len(points) < MIN_STEPS_COMPARED:
        return 0.0
    mean_tokens, mean_seconds = fmean(tokens for tokens, _ in points), fmean(seconds for _, seconds in points)
    spread = sum((tokens - mean_tokens) ** 2 for tokens, _ in points)
    slope = sum((t - mean_tokens) * (s - mean_seconds) for t, s in points) / spread if spread > 0 else 0.0
    if slope <= 0:  # steps of equal size, or noise: nothing can be concluded
        return 0.0
    fixed = mean_seconds - slope * mean_tokens
    noise = sum((s - fixed - slope * t) ** 2 for t, s in points) / (len(points) - 2)
    return max(0.0, fixed - 2 * math.sqrt(noise * (1 / len(points) + mean_tokens**2 / spread)))


def batch_gain(*, period: float, training: float, fixed: float, generating: float, loading: float) -> float | None:
    """The speedup with steps `LARGER` times as large; None if it is negligible.

    All arguments are seconds per step: between steps, of the trainer, of its fixed part, of an engine and a load.
    """
    trainer = fixed + LARGER * (training - fixed)
    engine = loading + LARGER * generating
    if min(period, trainer, engine) <= 0:
        return None
    gain = LARGER * period / max(trainer, engine)
    return gain if gain >= MIN_GAIN_TOLD else None


def describe_batch(prompts_per_step: int, gain: float) -> str:
    """The advice, with the key to change."""
    number = LARGER * prompts_per_step
    return f"train.prompts_per_step {number} (fewer, larger steps) would train at most {gain:.1f} times as much"
