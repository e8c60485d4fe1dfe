"""How often a process searches for garbage in cycles.

Trajectories and the turns of sessions are made in great numbers, stay for a while and are in no cycle. With
Python's threshold they are walked through several times before they go: a tenth of the CPU time of the controller
and of the gateway.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NUM_YOUNG = 10_000
"""Objects made between two searches; Python's own number is 700."""


def search_less_often() -> None:
    _, *older = gc.get_threshold()
    gc.set_threshold(NUM_YOUNG, *older)


@contextmanager
def searching_less_often() -> Iterator[None]:
    """The same until the block ends."""
    thresholds = gc.get_threshold()
    search_less_often()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
