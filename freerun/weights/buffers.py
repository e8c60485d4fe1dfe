"""Anonymous shared memory for two versions of the weights; made by the controller, which needs no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence

NUM_BUFFERS = 2


def create_buffers(name: str) -> tuple[int, ...]:
    """Descriptors of two empty buffers, to be inherited by trainer and engines; `name` is for people."""
    return tuple(os.memfd_create(f"{name}-{index}") for index in range(NUM_BUFFERS))


def close_buffers(descriptors: Sequence[int]) -> None:
    """Let go of the memory; it is freed when the last process that maps it has gone."""
    for descriptor in descriptors:
        os.close(descriptor)
