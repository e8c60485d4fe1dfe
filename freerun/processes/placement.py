"""Which cores each worker of a machine is pinned to.

Two torch processes on the same cores are extremely slow (OpenMP teams spin), so rollout workers and trainer
ranks are pinned to disjoint cores. Graders, agent workers and the controller are light and not pinned.

Workers with one thread have no team that could spin. If there are enough cores for either role but not for both, a
rollout worker and a trainer rank share a core: one computes while the other waits.

    2 cores, 2 rollout workers, 1 trainer     core 0: rollout-0     core 1: rollout-1, trainer
"""

import os
from dataclasses import dataclass

from freerun.config.recipe import Recipe
from freerun.processes.local import Seat


@dataclass(frozen=True)
class Placement:
    """The seat of each worker that computes."""

    seats: dict[str, Seat]
    is_crowded: bool
    """True if there are more threads than cores and no way to share them: nothing is pinned."""


def rollout_names(recipe: Recipe) -> list[str]:
    """Names of the rollout workers; none for SFT alone."""
    return [f"rollout-{index}" for index in range(recipe.engine.num_workers if recipe.generates else 0)]


def trainer_names(recipe: Recipe) -> list[str]:
    """Names of the trainer's processes, one per rank."""
    num_ranks = recipe.train.num_ranks
    return ["trainer"] if num_ranks == 1 else [f"trainer-{rank}" for rank in range(num_ranks)]


def place(recipe: Recipe) -> Placement:
    """Assign the first cores to rollout workers and the last ones to the trainer's ranks."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = dict.fromkeys(rollout_names(recipe), recipe.engine.num_threads)
    wanted |= dict.fromkeys(trainer_names(recipe), recipe.train.num_threads)
    num_undecided = sum(num_threads == 0 for num_threads in wanted.values())
    share = max(1, (len(cores) - sum(wanted.values())) // max(1, num_undecided))
    threads = {name: num_threads or share for name, num_threads in wanted.items()}
    if sum(threads.values()) > len(cores):
        rollouts, trainers = rollout_names(recipe), trainer_names(recipe)
        if any(n > 1 for n in threads.values()) or max(len(rollouts), len(trainers)) > len(cores):
            return Placement({name: Seat(n) for name, n in threads.items()}, is_crowded=True)
        seated = [*zip(rollouts, cores, strict=False), *zip(trainers, cores[-len(trainers) :], strict=True)]
        return Placement({name: Seat(1, (core,)) for name, core in seated}, is_crowded=False)
    free = iter(cores)
    return Placement(
        {name: Seat(n, tuple(next(free) for _ in range(n))) for name, n in threads.items()}, is_crowded=False
    )
