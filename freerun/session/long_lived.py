"""Exempts objects that live as long as the run from garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NUM_YOUNG = 10_000
"""Objects made between two searches for cycles among them. With Python's 700, the trajectories of a batch, which
stay until they are trained on, are searched many times."""


@contextmanager
def long_lived_objects() -> Iterator[None]:
    """Freeze what exists now: it is not scanned until the block ends. What is made later is scanned less often.

    A run holds all its prompts, a hundred thousand objects or more; each full collection would walk through them
    while the controller waits.
    """
    _, *older = thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NUM_YOUNG, *older)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
