"""Anonymous shared memory for two versions of the weights, made without torch by the controller or a Ray host."""

import os

from freerun.types import WeightRoute

NUM_BUFFERS = 2


def create_buffers(name: str) -> tuple[int, ...]:
    """File descriptors of two empty buffers, to be inherited by trainer and engines; `name` shows up in /proc."""
    return tuple(os.memfd_create(f"{name}-{index}") for index in range(NUM_BUFFERS))


def shared_route(descriptors: tuple[int, ...], *, dtype: str = "float32") -> WeightRoute:
    """The route for workers that inherit these buffers."""
    return WeightRoute(channel="shared", descriptors=descriptors, dtype=dtype)
