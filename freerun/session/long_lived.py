"""Exempts objects that live as long as the run from garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from freerun.processes.garbage import searching_less_often


@contextmanager
def long_lived_objects() -> Iterator[None]:
    """Freeze what exists now: it is not scanned until the block ends. What is made later is scanned less often.

    A run holds all its prompts, a hundred thousand objects or more; each full collection would walk through them
    while the controller waits.
    """
    gc.collect()
    gc.freeze()
    try:
        with searching_less_often():
            yield
    finally:
        gc.unfreeze()
