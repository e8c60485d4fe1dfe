"""Estimates which division between rollouts and training would have trained more, from a run's own measurements.

A stage that was busy for a share of its time could do 1 / share as much; with more or fewer workers it could do
proportionally more or less. This is cautious for engines: one that decodes few sequences counts as busy, though it
could decode more at little cost. `freerun plan` simulates instead (docs/planning.md).
"""

from typing import NamedTuple

MIN_UNITS = 4
"""Minimum number of GPUs or workers; with fewer there is little choice."""
MIN_FACTOR = 1.1


class Division(NamedTuple):
    """The resources of rollouts and training."""

    num_engines: int
    gpus_per_engine: int
    num_ranks: int

    @property
    def num_units(self) -> int:
        return self.num_engines * self.gpus_per_engine + self.num_ranks


class BetterDivision(NamedTuple):
    num_engines: int
    num_ranks: int
    factor: float
    """The estimated speedup."""


def better_division(now: Division, *, engine_share: float, trainer_share: float) -> BetterDivision | None:
    """The best division of the same GPUs, given the busy share of each stage."""
    if now.num_units < MIN_UNITS or min(now) < 1 or engine_share <= 0 or trainer_share <= 0:
        return None
    possible = []
    for num_engines in range(1, (now.num_units - 1) // now.gpus_per_engine + 1):
        num_ranks = now.num_units - num_engines * now.gpus_per_engine
        generation = num_engines / now.num_engines / min(1.0, engine_share)
        training = num_ranks / now.num_ranks / min(1.0, trainer_share)
        possible.append(BetterDivision(num_engines, num_ranks, min(generation, training)))
    # Of equally good divisions, take the one that moves the fewest engines.
    best = max(possible, key=lambda each: (each.factor, -abs(each.num_engines - now.num_engines)))
    return best if best.factor >= MIN_FACTOR and best.num_engines != now.num_engines else None


def describe_division(now: Division, better: BetterDivision) -> str:
    """For example `10 of 16 GPUs for rollouts instead of 12`, in the keys to change."""
    size = now.gpus_per_engine
    moved = f"{better.num_engines * size} of {now.num_units} for rollouts instead of {now.num_engines * size}"
    keys = f"engine.num_workers {better.num_engines}, train.num_ranks {better.num_ranks}"
    return f"{moved} ({keys}) would train about {better.factor:.1f} times as much"
