"""Objects that live as long as the run, which garbage collection need not look through again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived_objects() -> Iterator[None]:
    """What exists now is not looked through until the block ends.

    A run holds all its prompts, a hundred thousand objects or more; each full collection would walk through them
    while the controller waits.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
