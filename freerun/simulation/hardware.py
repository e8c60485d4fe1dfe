"""GPUs as data: speed, memory, links and price. Add others in a TOML file (`--hardware FILE`).

    [mi300x]
    flops = 1.307e15              # dense, bfloat16
    memory_bandwidth = 5.3e12     # bytes per second
    memory_bytes = 192e9

Other fields have defaults. The built-in figures are from the vendors' data sheets; prices are examples of 2026.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from freerun.errors import FreerunError

Positive = Annotated[float, Meta(gt=0)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of GPU, and how it is connected."""

    flops: Positive
    """Peak operations per second, dense, in bfloat16."""
    memory_bandwidth: Positive
    """Bytes per second between the GPU and its memory."""
    memory_bytes: Positive
    gpus_per_node: Annotated[int, Meta(ge=1)] = 8
    all_reduce_seconds: Positive = 25e-6
    """Time for a small message over the GPUs of a node, twice per layer in a tensor-parallel model."""
    network_bandwidth: Positive = 12.5e9
    """Bytes per second into a node: 100 Gbit/s."""
    load_bandwidth: Positive = 4e9
    """Bytes per second at which a rollout worker checks, reads and converts new weights; not measured."""
    publish_bandwidth: Positive = 60e9
    """Bytes per second at which the trainer copies its weights for publication; not measured."""
    price: Annotated[float, Meta(ge=0)] = 0.0
    """Price of one GPU per hour in dollars; 0 if unknown."""


GPUS = {
    "h100": Gpu(flops=989e12, memory_bandwidth=3.35e12, memory_bytes=80e9, price=2.5),
    "h200": Gpu(flops=989e12, memory_bandwidth=4.8e12, memory_bytes=141e9, price=3.2),
    "h800": Gpu(flops=989e12, memory_bandwidth=3.35e12, memory_bytes=80e9, price=2.5),
    "a100": Gpu(flops=312e12, memory_bandwidth=2.04e12, memory_bytes=80e9, price=1.3),
    "l40s": Gpu(flops=362e12, memory_bandwidth=0.864e12, memory_bytes=48e9, all_reduce_seconds=60e-6, price=0.9),
}
"""GPUs by the names that `--kind` accepts."""


def find_gpu(kind: str, own: Path | None = None) -> Gpu:
    """The GPU of this name, from the user's file or the built-in table."""
    known = GPUS | (read_gpus(own) if own is not None else {})
    if kind in known:
        return known[kind]
    near = difflib.get_close_matches(kind, known, n=1)
    remedy = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}; add yours with --hardware"
    raise FreerunError(f'unknown GPU "{kind}"; {remedy}')


def read_gpus(path: Path) -> dict[str, Gpu]:
    """The GPUs of a user's file, by name."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), dict[str, Gpu], strict=False)
    except OSError as error:
        raise FreerunError(f"{path}: cannot be read ({error.strerror}); name a TOML file of GPUs") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise FreerunError(
            f"{path}: is not a table of GPUs ({error}); each needs flops, memory_bandwidth and memory_bytes"
        ) from error
