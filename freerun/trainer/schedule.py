"""The learning rate of SFT. No torch here: the controller computes it."""

import math


def cosine_learning_rate(step: int, *, num_steps: int, peak: float, ramp_steps: int) -> float:
    """A linear ramp over the first steps, under a cosine from the peak down to a tenth of it."""
    ramp = min(1.0, (step + 1) / ramp_steps) if ramp_steps else 1.0
    fall = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return peak * ramp * fall
