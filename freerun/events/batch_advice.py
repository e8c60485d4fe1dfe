"""How much more larger steps could train, from the curves that a run measured of itself.

A training step takes a fixed time and a time for each token; each new version stops the engines for a load.
Larger steps pay both more rarely. The gain is what both stages can do at most, and cautious: of the fixed time
only what the steps prove is counted. What larger steps do to learning is not in it.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from freerun.events.bound_advice import MIN_GAIN_TOLD

LARGER = 4
"""Times as many prompts in a step."""
MIN_STEPS_COMPARED = 8
"""A line through fewer tells nothing."""


def fixed_seconds(points: Sequence[tuple[float, float]]) -> float:
    """Seconds of a step that do not grow with its tokens, less twice the standard error; of (tokens, seconds)."""
    if len(points) < MIN_STEPS_COMPARED:
        return 0.0
    mean_tokens, mean_seconds = fmean(tokens for tokens, _ in points), fmean(seconds for _, seconds in points)
    spread = sum((tokens - mean_tokens) ** 2 for tokens, _ in points)
    slope = sum((t - mean_tokens) * (s - mean_seconds) for t, s in points) / spread if spread > 0 else 0.0
    if slope <= 0:  # steps of equal size, or noise: nothing can be told
        return 0.0
    fixed = mean_seconds - slope * mean_tokens
    noise = sum((s - fixed - slope * t) ** 2 for t, s in points) / (len(points) - 2)
    return max(0.0, fixed - 2 * math.sqrt(noise * (1 / len(points) + mean_tokens**2 / spread)))


def batch_gain(*, period: float, training: float, fixed: float, generating: float, loading: float) -> float | None:
    """How many times as much steps `LARGER` times as large could train; None if that is hardly more.

    All are seconds of a step: from one to the next, of the trainer, of that what does not grow, and of an engine.
    """
    trainer = fixed + LARGER * (training - fixed)
    engine = loading + LARGER * generating
    if min(period, trainer, engine) <= 0:
        return None
    gain = LARGER * period / max(trainer, engine)
    return gain if gain >= MIN_GAIN_TOLD else None


def describe_batch(prompts_per_step: int, gain: float) -> str:
    """In the key that a user changes."""
    number = LARGER * prompts_per_step
    return f"train.prompts_per_step {number} (fewer, larger steps) would train at most {gain:.1f} times as much"
