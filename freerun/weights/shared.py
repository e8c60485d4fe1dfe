"""Weights in double-buffered shared memory: the trainer writes one buffer while engines read the other.

    trainer ── copy ──► buffer[version % 2] ◄── views, in place ── engine
                 └── checksum(version, bytes) ──► controller ──► engine confirms it before it switches

The memory is anonymous (memfd): it has no name in /dev/shm and is gone with the last process that holds
it, kill -9 included. Engines on the CPU in float32 use the buffer itself as their parameters: nothing is copied at
a load but the large matrices, which each engine packs for itself (`freerun.model.packed`).

Contract: `publish(version)` overwrites what `version - 2` used. The caller publishes only after every
engine that was ever told to load anything has confirmed `version - 1` or is gone; then nobody reads that buffer
any more. An engine that is still starting reads none, and is told to load the newest when it is ready.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence

import torch
import xxhash
from torch import Tensor

from freerun.errors import WeightsError
from freerun.weights.buffers import NUM_BUFFERS
from freerun.weights.layout import WeightLayout


class SharedWeights:
    """One process's view of the two buffers; the trainer publishes, engines fetch."""

    def __init__(self, descriptors: Sequence[int], layout: WeightLayout, *, frozen: str = "") -> None:
        self._layout = layout
        self._frozen = frozen
        """Checksum of the weights that are not in the buffers: part of every checksum, so that it covers them."""
        self._buffers_B = [self._map(descriptor) for descriptor in descriptors]
        self._views = [layout.views(buffer_B) for buffer_B in self._buffers_B]

    def _map(self, descriptor: int) -> Tensor:
        size = os.fstat(descriptor).st_size
        if size == 0:
            os.ftruncate(descriptor, self._layout.num_bytes)
        elif size != self._layout.num_bytes:
            raise WeightsError(f"the shared buffer has {size} bytes, the model needs {self._layout.num_bytes}")
        # Populated now: the first touch of a page costs seven times a later one.
        memory = mmap.mmap(descriptor, self._layout.num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    @torch.no_grad()
    def write(self, version: int, state: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Copy the weights into this version's buffer; this is all that holds the trainer.

        Pairs are copied as they come, so that tensors gathered one at a time never exist all at once.
        """
        views = dict(self._views[version % NUM_BUFFERS])
        for name, tensor in state.items() if isinstance(state, Mapping) else state:
            views.pop(name).copy_(tensor)
        if views:
            raise WeightsError(f'version {version} was written without "{min(views)}"; the buffer mixes versions')

    def checksum(self, version: int) -> str:
        """A hash over this version's buffer and its number: swapped versions cannot pass for each other."""
        buffer_B = self._buffers_B[version % NUM_BUFFERS]
        published = str(xxhash.xxh3_64(buffer_B.numpy().data, seed=version).hexdigest())
        return f"{published} on {self._frozen}" if self._frozen else published

    def fetch(self, version: int, checksum: str) -> Mapping[str, Tensor]:
        """The weights of `version`, in place, after confirming that they arrived whole."""
        actual = self.checksum(version)
        if actual != checksum:
            raise WeightsError(
                f"weights of version {version} arrived damaged: checksum {actual}, published was {checksum}"
            )
        return self._views[version % NUM_BUFFERS]
