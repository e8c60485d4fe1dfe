"""The interface through which weights travel: the trainer publishes a version, generators fetch and confirm it.

    trainer ── publish(version, state) ──► memory ~~~ transport ~~~► memory ── fetch(publication) ──► generator
                     └── Publication(version, checksum) ──► controller ──► generator

A `WeightRoute` says which transport a run uses and how a worker reaches it. It is data: workers get it in their
start message. On every transport a version arrives in memory of the generator's machine, laid out by
`WeightLayout`, so engines can use it in place. To add a transport, write one file and add one row to `CHANNELS`.

This module does not import torch: the controller makes routes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from freerun.types import Publication, WeightRoute

if TYPE_CHECKING:
    from torch import Tensor

    from freerun.weights.layout import WeightLayout

State: TypeAlias = "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]"
"""Weights by parameter name; pairs are copied one at a time, so gathered tensors never exist all at once."""
CHANNELS = {
    "shared": "freerun.weights.shared:SharedMemoryChannel",
    "ray": "freerun.backends.ray.weights:ObjectStoreChannel",
}
"""Implementations by `WeightRoute.channel`; imported where they are opened."""


class WeightChannel(Protocol):
    """One process's end of the transport."""

    def publish(self, version: int, state: State) -> Callable[[], Publication]:
        """Copy the weights, which blocks the trainer; call the result, on any thread, to make them available."""

    def has_arrived(self, published: Publication, *, timeout_seconds: float = 0.0) -> bool:
        """Whether `fetch` would return at once; requests a remote version and waits up to the timeout."""

    def fetch(self, published: Publication) -> Mapping[str, Tensor]:
        """The weights, in place, after confirming their checksum; raises `WeightsError` if they are damaged."""

    def path(self, version: int) -> str:
        """The file that other processes of this machine and user can map to read the version."""


def open_channel(route: WeightRoute, layout: WeightLayout, *, frozen: str = "") -> WeightChannel:
    """Open this process's end; `frozen` is the checksum of unpublished weights, equal on both ends."""
    module, _, name = CHANNELS[route.channel].partition(":")
    channel: WeightChannel = getattr(importlib.import_module(module), name).open(route, layout, frozen=frozen)
    return channel
