"""What each worker of a recipe requests from a Ray cluster, and which workers are placed together.

- Trainer ranks share a placement group, packed on as few nodes as possible: they talk to each other in every step.
- Every rollout worker has its own group, so each can come and go independently.
- Graders share a group, and so do agent workers. They are light, and request memory instead of a CPU so that they
  fit beside the others.
"""

from dataclasses import dataclass

from freerun.config.engine import Device
from freerun.config.recipe import Recipe
from freerun.processes.placement import rollout_names, trainer_names

GRADER_MEMORY_BYTES = 64 << 20
AGENT_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True)
class Demand:
    num_cpus: int = 0
    num_gpus: int = 0
    memory_bytes: int = 0

    @property
    def num_threads(self) -> int:
        return max(1, self.num_cpus)

    @property
    def bundle(self) -> dict[str, float]:
        """The bundle in Ray's terms, without resources that are not needed."""
        resources = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory_bytes}
        return {name: float(number) for name, number in resources.items() if number}

    def __str__(self) -> str:
        parts = [f"{self.num_cpus} CPU" if self.num_cpus else "", f"{self.num_gpus} GPU" if self.num_gpus else ""]
        parts += [f"{self.memory_bytes >> 20} MiB" if self.memory_bytes else ""]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class WorkerGroup:
    """Workers that are placed together, one bundle each, in this order."""

    names: tuple[str, ...]
    demand: Demand


def groups_of(recipe: Recipe, *, has_gpus: bool) -> list[WorkerGroup]:
    """All workers of the recipe; `has_gpus` decides what a device of `auto` means."""
    trainer = _computing(recipe.train.num_threads, recipe.train.device, has_gpus=has_gpus)
    engine = recipe.engine
    rollout = _computing(engine.num_threads, engine.device, has_gpus=has_gpus, num_gpus=engine.num_gpus)
    graders = tuple(f"grader-{index}" for index in range(recipe.reward.num_workers))
    num_agents = recipe.rollout.num_workers if recipe.rollout.runs_sessions else 0
    agents = tuple(f"agent-{index}" for index in range(num_agents))
    if not recipe.generates:
        return [WorkerGroup(tuple(trainer_names(recipe)), trainer)]
    return [
        WorkerGroup(tuple(trainer_names(recipe)), trainer),
        *(WorkerGroup((name,), rollout) for name in rollout_names(recipe)),
        WorkerGroup(graders, Demand(memory_bytes=GRADER_MEMORY_BYTES)),
        *([WorkerGroup(agents, Demand(memory_bytes=AGENT_MEMORY_BYTES))] if agents else []),
    ]


def _computing(num_threads: int, device: Device, *, has_gpus: bool, num_gpus: int = 1) -> Demand:
    is_on_gpu = device == "cuda" or (device == "auto" and has_gpus)
    # "Divide the cores" has no meaning if machines come and go; one thread can always be placed.
    return Demand(num_cpus=num_threads or 1, num_gpus=num_gpus if is_on_gpu else 0)
