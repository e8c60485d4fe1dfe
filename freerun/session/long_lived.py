"""Exempts objects that live as long as the run from garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived_objects() -> Iterator[None]:
    """Freeze what exists now: it is not scanned until the block ends.

    A run holds all its prompts, a hundred thousand objects or more; each full collection would walk through them
    while the controller waits.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
