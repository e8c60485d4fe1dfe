"""Exempts objects that live as long as the run from garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from freerun.processes.garbage import search_less_often


@contextmanager
def long_lived_objects() -> Iterator[None]:
    """Freeze what exists now: it is not scanned until the block ends. What is made later is scanned less often.

    A run holds all its prompts, a hundred thousand objects or more; each full collection would walk through them
    while the controller waits.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    search_less_often()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
