"""On which device each worker of a run will compute, found out before any of them is started.

Only for workers of this machine that are ours: nodes of a cluster and vLLM servers have their own GPUs, and the
worker itself says if it finds none.
"""

from __future__ import annotations

import functools
import subprocess
import sys

from freerun.config.engine import Device
from freerun.config.recipe import Recipe
from freerun.errors import WorkerError
from freerun.model.device import choose_device
from freerun.processes.placement import rollout_names, trainer_names

ELSEWHERE = "the device it finds"
PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
PROBE_SECONDS = 120


@functools.cache
def count_gpus() -> int:
    """GPUs that torch sees, asked in a process of its own: this one does without torch."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"torch did not say within {PROBE_SECONDS} s which devices it sees") from None
    except subprocess.CalledProcessError as error:
        raise WorkerError(f"torch could not be asked which devices it sees:\n{error.stderr.strip()}") from None
    return int(probe.stdout)


def planned_devices(recipe: Recipe) -> dict[str, str]:
    """The device of each worker that computes, by its name; refuses a GPU that is not there."""
    is_here = recipe.runtime.backend == "local"
    rollouts, ranks = rollout_names(recipe), trainer_names(recipe)
    asked: dict[str, tuple[str, Device]] = dict.fromkeys(rollouts, ("engine.device", recipe.engine.device))
    asked |= dict.fromkeys(ranks, ("train.device", recipe.train.device))
    devices: dict[str, str] = {}
    for index, (name, (key, device)) in enumerate(asked.items()):
        if not is_here or (name in rollouts and recipe.engine.backend != "native"):
            devices[name] = ELSEWHERE
        else:
            num_gpus = 0 if device == "cpu" else count_gpus()
            devices[name] = choose_device(key, device, num_gpus=num_gpus, index=index)
    return devices


def has_cpu_servers(recipe: Recipe) -> bool:
    """Whether vLLM servers are started on this machine that have no GPU."""
    engine = recipe.engine
    is_started_here = engine.backend == "vllm" and not engine.addresses and recipe.runtime.backend == "local"
    return is_started_here and (engine.device == "cpu" or count_gpus() == 0)


def check_devices(recipe: Recipe) -> None:
    """Refuse a GPU that was asked for by name and is not there; `auto` is the worker's own business."""
    if "cuda" in (recipe.engine.device, recipe.train.device):
        planned_devices(recipe)
