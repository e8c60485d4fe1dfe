"""The device of each worker of a run, determined before any worker starts.

Only for workers of this machine and environment: cluster nodes have their own GPUs, and so may servers that run
elsewhere or in another environment. Those report it themselves if they find no GPU.
"""

import functools
import subprocess
import sys

from freerun.backends.backend import find_backend
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
    """Number of GPUs that torch sees, counted in another process because this one does not import torch."""
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
    """The device of each worker that computes, by name; raises if GPUs are missing or cannot be shared."""
    engine, train = recipe.engine, recipe.train
    rollouts, ranks = rollout_names(recipe), trainer_names(recipe)
    devices = dict.fromkeys((*rollouts, *ranks), ELSEWHERE)
    if recipe.runtime.backend != "local":
        return devices
    backend, num_engine_gpus = find_backend(engine.backend), len(rollouts) * engine.num_gpus
    if backend.uses_our_gpus(recipe):
        for index, name in enumerate(rollouts):
            own = range(index * engine.num_gpus, (index + 1) * engine.num_gpus)
            chosen = (_device("engine.device", engine.device, gpu) for gpu in own)
            devices[name] = ", ".join(dict.fromkeys(chosen))
        if backend.owns_gpus:
            what = f"engine.num_workers x engine.num_gpus = {num_engine_gpus}"
            _require_enough(what, backend.owns_gpus, num_engine_gpus, engine.device, "engine.device")
    for rank, name in enumerate(ranks):
        devices[name] = _device("train.device", train.device, num_engine_gpus + rank)
    if len(ranks) > 1:
        what = f"train.num_ranks = {len(ranks)}"
        _require_enough(what, "NCCL's ranks", len(ranks), train.device, "train.device")
    return devices


def _device(key: str, device: Device, index: int) -> str:
    return choose_device(key, device, num_gpus=0 if device == "cpu" else count_gpus(), index=index)


def _require_enough(what: str, who: str, num_wanted: int, device: Device, key: str) -> None:
    if device != "cpu" and 0 < count_gpus() < num_wanted:
        raise ConfigError(
            f"{what}, but torch sees {count_gpus()} GPU(s) on this machine, and {who} cannot share one; lower it, "
            f'or set {key} = "cpu"'
        )


def check_devices(recipe: Recipe) -> None:
    """Raise if GPUs are missing or cannot be shared; torch is only asked if the recipe may use GPUs."""
    backend = find_backend(recipe.engine.backend)
    owns_gpus = bool(backend.owns_gpus) and backend.uses_our_gpus(recipe)
    if "cuda" in (recipe.engine.device, recipe.train.device) or recipe.train.num_ranks > 1 or owns_gpus:
        planned_devices(recipe)
