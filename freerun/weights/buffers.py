"""Anonymous shared memory for two versions of the weights; made by the controller, which needs no torch."""

from __future__ import annotations

import os

NUM_BUFFERS = 2


def create_buffers(name: str) -> tuple[int, ...]:
    """Descriptors of two empty buffers, to be inherited by trainer and engines; `name` is for people."""
    return tuple(os.memfd_create(f"{name}-{index}") for index in range(NUM_BUFFERS))
