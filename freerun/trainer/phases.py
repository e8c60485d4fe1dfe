"""The trainer's time by phase, since the previous step.

publishing, saving       between two steps: copies of the weights; threads do the rest
rating                   checking the batch, advantages and weights of its samples, packing
proximal, reference      forwards without gradient at the start of the step
training                 forward, loss, backward
updating                 the optimizer
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds up seconds by phase, in the order in which phases first begin; phases do not nest."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def take(self) -> tuple[tuple[str, float], ...]:
        """Return the sums and start again from zero."""
        taken = tuple(self._seconds.items())
        self._seconds = {}
        return taken
