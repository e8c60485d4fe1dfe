"""`freerun train` with workers that answer immediately: the controller, its store and its sockets are real.

    python -m bench.simulated_run recipes/euclid.toml --train.num_steps 100 --run.directory /tmp/runs

The controller has one core to itself; the workers share another.
"""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import freerun.session.train
from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.processes.link import Launcher, WorkerJob
from freerun.processes.local import Child, LocalLauncher, Seat
from freerun.processes.placement import rollout_names, trainer_names


class SimulatingLauncher:
    """Starts a simulated worker in the place of every one that is asked for."""

    def __init__(self, launcher: LocalLauncher) -> None:
        self._launcher = launcher
        self.weights = launcher.weights

    async def launch(self, job: WorkerJob, receives: Any) -> Child[Any]:
        return await self._launcher.launch(dataclasses.replace(job, module="bench.sides.simulated"), receives)

    def pids(self) -> dict[str, int]:
        return self._launcher.pids()

    async def close(self) -> None:
        await self._launcher.close()


def make_launcher(recipe: Recipe, logs: Path, *, publishes: bool) -> Launcher:
    controllers, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {controllers})
    graders = [f"grader-{index}" for index in range(recipe.reward.num_workers)]
    names = [*rollout_names(recipe), *trainer_names(recipe), *graders]
    return SimulatingLauncher(LocalLauncher(logs, dict.fromkeys(names, Seat(1, tuple(others[:1])))))


def main() -> None:
    freerun.session.train.make_launcher = make_launcher  # type: ignore[attr-defined]  # only imported there
    recipe = load_recipe(Path(sys.argv[1]), sys.argv[2:])
    sys.exit(freerun.session.train.run_training(recipe, resume=False))


if __name__ == "__main__":
    main()
