"""A worker's device and dtype: from the configuration's names to torch's.

Workers of one machine are numbered, rollout workers first, then the trainer's ranks. Worker `index` takes GPU
`index % number of GPUs`: each has its own if there are enough, otherwise they share. `session/devices.py` refuses
sharing where it cannot work. Under Ray a worker sees only the GPUs it was given, and the same rule applies.

torch is imported inside the functions, so the controller can use the rule without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freerun.config.engine import Device
from freerun.errors import ConfigError

if TYPE_CHECKING:
    import torch


def choose_device(key: str, asked: Device, *, num_gpus: int, index: int) -> str:
    """The device's name in torch; `key` is the setting that an error names."""
    if asked == "cuda" and num_gpus == 0:
        raise ConfigError(f'{key} = "cuda", but torch sees no CUDA device on this machine; set {key} = "cpu"')
    return "cpu" if asked == "cpu" or num_gpus == 0 else f"cuda:{index % num_gpus}"


def resolve_device(key: str, asked: Device, *, index: int) -> torch.device:
    """The device of worker number `index` of this machine."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device(choose_device(key, asked, num_gpus=num_gpus, index=index))


def resolve_dtype(asked: str) -> torch.dtype:
    """The dtype of this name in a recipe (`config.engine.Dtype`)."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[asked]
