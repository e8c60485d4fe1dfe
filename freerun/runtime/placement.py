"""Which cores each process stays on: its own, as far as there are enough.

Two torch processes on the same cores collapse (OpenMP teams spin), so rollout workers and the trainer are pinned
to disjoint cores. Graders and the controller are light and float.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from freerun.config.recipe import Recipe


@dataclass(frozen=True)
class Placement:
    """Cores by process; an empty tuple leaves the choice to the kernel."""

    rollout_cores: tuple[tuple[int, ...], ...]
    trainer_cores: tuple[int, ...]
    is_crowded: bool
    """More threads than cores: nothing is pinned, and processes share."""


def place(recipe: Recipe) -> Placement:
    """Rollout workers from the first core on, the trainer after them."""
    cores = sorted(os.sched_getaffinity(0))
    engine, train = recipe.engine, recipe.train
    num_wanted = engine.num_workers * engine.num_threads + train.num_threads
    if num_wanted > len(cores):
        return Placement(((),) * engine.num_workers, (), is_crowded=True)
    slices = [
        tuple(cores[i * engine.num_threads : (i + 1) * engine.num_threads]) for i in range(engine.num_workers)
    ]
    first = engine.num_workers * engine.num_threads
    return Placement(tuple(slices), tuple(cores[first : first + train.num_threads]), is_crowded=False)
