"""Weights in double-buffered shared memory: the trainer writes one buffer while engines read the other.

    trainer ── copy ──► buffer[version % 2] ◄── views, in place ── engine
                 └── checksum(version, bytes) ──► controller ──► engine confirms it before it switches

The memory is anonymous (memfd): it has no name in /dev/shm and disappears with the last process that holds it,
kill -9 included. Engines on the CPU use the buffer itself as their parameters; each copies only the large
float32 matrices, which it packs for itself (`freerun.model.packed`) while it still decodes with the previous
version.

Contract: publishing `version` overwrites the buffer of `version - 2`. The caller publishes only after every
engine that was ever told to load anything has confirmed `version - 1` or is gone, so no engine reads that buffer
any more, nor does a thread that packs for one. An engine that is still starting reads none; it is told to load the
newest version when it is ready.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence

import torch
import xxhash
from torch import Tensor

from freerun.errors import WeightsError
from freerun.types import Publication, WeightRoute
from freerun.weights.buffers import NUM_BUFFERS
from freerun.weights.channel import State
from freerun.weights.layout import WeightLayout


class SharedMemoryChannel:
    """One process's view of the two buffers; implements `channel.WeightChannel`."""

    def __init__(self, descriptors: Sequence[int], layout: WeightLayout, *, frozen: str = "") -> None:
        self._layout = layout
        self._frozen = frozen
        """Checksum of the weights that are not in the buffers; part of every checksum."""
        self._descriptors = tuple(descriptors)
        self._buffers_B = [self._map(descriptor) for descriptor in descriptors]
        self._views = [layout.views(buffer_B) for buffer_B in self._buffers_B]

    @classmethod
    def open(cls, route: WeightRoute, layout: WeightLayout, *, frozen: str = "") -> SharedMemoryChannel:
        return cls(route.descriptors, layout, frozen=frozen)

    def _map(self, descriptor: int) -> Tensor:
        size = os.fstat(descriptor).st_size
        if size == 0:
            os.ftruncate(descriptor, self._layout.num_bytes)
        elif size != self._layout.num_bytes:
            raise WeightsError(f"the shared buffer has {size} bytes, the model needs {self._layout.num_bytes}")
        # Populated in advance: the first touch of a page costs seven times a later one.
        memory = mmap.mmap(descriptor, self._layout.num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def publish(self, version: int, state: State) -> Callable[[], Publication]:
        self.write(version, state)
        return lambda: Publication(version=version, checksum=self.checksum(version))

    def has_arrived(self, published: Publication, *, timeout_seconds: float = 0.0) -> bool:
        return True

    @torch.no_grad()
    def write(self, version: int, state: State) -> None:
        """Copy the weights into this version's buffer; pairs are copied one at a time, as they come."""
        views = dict(self._views[version % NUM_BUFFERS])
        for name, tensor in state.items() if isinstance(state, Mapping) else state:
            views.pop(name).copy_(tensor)
        if views:
            raise WeightsError(f'version {version} was written without "{min(views)}"; the buffer mixes versions')

    def checksum(self, version: int) -> str:
        """A hash over this version's buffer and its number, so swapped versions are detected."""
        buffer_B = self._buffers_B[version % NUM_BUFFERS]
        published = str(xxhash.xxh3_64(buffer_B.numpy().data, seed=version).hexdigest())
        return f"{published} on {self._frozen}" if self._frozen else published

    def fetch(self, published: Publication) -> Mapping[str, Tensor]:
        version = published.version
        if (actual := self.checksum(version)) != published.checksum:
            raise WeightsError(
                f"weights of version {version} arrived damaged: checksum {actual}, published was "
                f"{published.checksum}"
            )
        return self._views[version % NUM_BUFFERS]

    def path(self, version: int) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptors[version % NUM_BUFFERS]}"
