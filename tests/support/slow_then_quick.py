"""A user's advantage that takes two seconds in the first steps: first the trainer is the limit, then rollouts."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

NUM_SLOW_STEPS = 10
SECONDS = 2.0
_calls: list[float] = []


def advantage(rewards: Sequence[np.ndarray], lengths: Sequence[np.ndarray], objective: Any) -> list[np.ndarray]:
    _calls.append(time.monotonic())
    if len(_calls) <= NUM_SLOW_STEPS:
        time.sleep(SECONDS)
    return [of_group - of_group.mean() for of_group in rewards]
