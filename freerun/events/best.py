"""The best evaluated version of a run: for its checkpoints, its summary and `--version best`."""

import math
from collections.abc import Collection, Iterable
from typing import Literal, TypeVar

from freerun.events.events import EvalRow

CheckpointVersion = int | Literal["best"]
"""A version of a run, or the one with the best held-out accuracy."""
E = TypeVar("E", bound=EvalRow)


def best_eval(evals: Iterable[E], *, kept: Collection[int] | None = None) -> E | None:
    """The evaluation with the highest held-out accuracy, the newest of equal ones; None if there is none.

    `kept` are the versions to choose from. Version 0 always counts: it is the model that the run started with.
    """
    known = [row for row in evals if math.isfinite(row.accuracy)]
    there = [row for row in known if kept is None or row.version == 0 or row.version in kept]
    return max(there, key=lambda row: (row.accuracy, row.version), default=None)
