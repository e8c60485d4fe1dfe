"""The weight channel of workers on a Ray cluster: memory that a node's workers share and hosts fill.

trainer ─► memory of its node ─ put ─► object store ─ get ─► memory of another node ─► its workers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from freerun.backends.ray.transfer import HostSocket, inherited_descriptors
from freerun.types import Publication, WeightRoute
from freerun.weights.channel import State
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel


class ObjectStoreChannel:
    """Implements `channel.WeightChannel`."""

    def __init__(self, memory: SharedMemoryChannel, host: HostSocket) -> None:
        self._memory = memory
        self._host = host

    @classmethod
    def open(cls, route: WeightRoute, layout: WeightLayout, *, frozen: str = "") -> ObjectStoreChannel:
        *buffers, host = inherited_descriptors()
        return cls(SharedMemoryChannel(buffers, layout, frozen=frozen), HostSocket(host))

    def publish(self, version: int, state: State) -> Callable[[], Publication]:
        finish = self._memory.publish(version, state)

        def share() -> Publication:
            published = finish()
            self._host.share(version)
            return published

        return share

    def has_arrived(self, published: Publication, *, timeout_seconds: float = 0.0) -> bool:
        return self._host.bring(published.version, timeout_seconds=timeout_seconds)

    def fetch(self, published: Publication) -> Mapping[str, Tensor]:
        return self._memory.fetch(published)

    def path(self, version: int) -> str:
        return self._memory.path(version)
