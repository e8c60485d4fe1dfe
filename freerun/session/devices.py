"""On which device each worker of a run will compute, found out before any of them is started.

Only for workers of this machine: nodes of a cluster have their own GPUs, and so may vLLM servers that are joined
or live in another environment. Those say themselves if they find none.
"""

from __future__ import annotations

import functools
import subprocess
import sys

from freerun.config.engine import Device
from freerun.config.recipe import Recipe
from freerun.errors import ConfigError, WorkerError
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
            [sys.executable, "-P", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"torch did not say within {PROBE_SECONDS} s which devices it sees") from None
    except subprocess.CalledProcessError as error:
        raise WorkerError(f"torch could not be asked which devices it sees:\n{error.stderr.strip()}") from None
    return int(probe.stdout)


def planned_devices(recipe: Recipe) -> dict[str, str]:
    """The device of each worker that computes, by its name; refuses GPUs that are missing or cannot be shared."""
    rollouts, ranks, engine = rollout_names(recipe), trainer_names(recipe), recipe.engine
    if recipe.runtime.backend != "local":
        return dict.fromkeys((*rollouts, *ranks), ELSEWHERE)
    devices = dict.fromkeys(rollouts, ELSEWHERE)
    num_engine_gpus = len(rollouts) * engine.num_gpus
    if engine.backend == "native" or _starts_servers(recipe):
        for index, name in enumerate(rollouts):
            first = index * engine.num_gpus
            chosen = (
                _device("engine.device", engine.device, index) for index in range(first, first + engine.num_gpus)
            )
            devices[name] = ", ".join(dict.fromkeys(chosen))
    for rank, name in enumerate(ranks):
        devices[name] = _device("train.device", recipe.train.device, num_engine_gpus + rank)
    if _starts_servers(recipe):
        what = f"engine.num_workers x engine.num_gpus = {num_engine_gpus}"
        _require_enough(what, "vLLM servers", num_engine_gpus, engine.device, "engine.device")
    if len(ranks) > 1:
        _require_enough(
            f"train.num_ranks = {len(ranks)}", "NCCL's ranks", len(ranks), recipe.train.device, "train.device"
        )
    return devices


def _device(key: str, device: Device, index: int) -> str:
    return choose_device(key, device, num_gpus=0 if device == "cpu" else count_gpus(), index=index)


def _require_enough(what: str, who: str, num_wanted: int, device: Device, key: str) -> None:
    if device != "cpu" and 0 < count_gpus() < num_wanted:
        raise ConfigError(
            f"{what}, but torch sees {count_gpus()} GPU(s) on this machine, and {who} cannot share one; lower it, "
            f'or set {key} = "cpu"'
        )


def _starts_servers(recipe: Recipe) -> bool:
    """Whether vLLM servers are started here, in the environment that can be asked for its GPUs."""
    engine = recipe.engine
    is_ours = not engine.addresses and not engine.vllm_python
    return engine.backend == "vllm" and is_ours and recipe.runtime.backend == "local"


def has_cpu_servers(recipe: Recipe) -> bool:
    """Whether vLLM servers are started on this machine that have no GPU."""
    return _starts_servers(recipe) and (recipe.engine.device == "cpu" or count_gpus() == 0)


def check_devices(recipe: Recipe) -> None:
    """Refuse GPUs that are missing or cannot be shared; whether `auto` finds any is the worker's own business."""
    asks_by_name = "cuda" in (recipe.engine.device, recipe.train.device)
    if asks_by_name or recipe.train.num_ranks > 1 or _starts_servers(recipe):
        planned_devices(recipe)
