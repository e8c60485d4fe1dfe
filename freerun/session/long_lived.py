"""Exempts objects that live as long as the run from garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from freerun.processes.garbage import searching_less_often


@contextmanager
def long_lived_objects() -> Iterator[None]:
    """Exempt existing objects from garbage collection until the block ends, and collect newer ones less often.

    A run holds all its prompts, a hundred thousand objects or more. Each full collection would scan them while the
    controller waits.
    """
    gc.collect()
    gc.freeze()
    try:
        with searching_less_often():
            yield
    finally:
        gc.unfreeze()
