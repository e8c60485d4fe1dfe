"""Messages about weights between a worker on a Ray cluster and its host; imports neither torch nor Ray.

    worker ── Put(version) ──► host: put the buffer into the object store
    worker ── Bring(version) ──► host: fill the buffer from the object store, unless the version is there
    worker ◄── Moved(version) ── host

They share two buffers of memory with all workers of the node (`node_buffers.py`). Ray is never imported in a
worker, and torch never in a host.
"""

import os
import select
import socket

import msgspec

from freerun.errors import WeightsError
from freerun.processes.frames import FrameReader, to_frame

DESCRIPTORS_VARIABLE = "FREERUN_WEIGHT_DESCRIPTORS"
"""Environment variable with the inherited file descriptors: the two buffers and the socket."""


class Put(msgspec.Struct, frozen=True, tag=True):
    """Put the buffer of this version into the object store."""

    version: int


class Bring(msgspec.Struct, frozen=True, tag=True):
    """Bring this version into the node's buffer, from the object store if it is not there yet."""

    version: int


class Moved(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Put` and `Bring`."""

    version: int
    error: str = ""


class HostSocket:
    """Asks this process's host to move weights."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._reader: FrameReader[Moved] = FrameReader(self._socket, Moved)
        self._asked: int | None = None
        self._arrived: int | None = None

    def share(self, version: int) -> None:
        """Return when other hosts can fetch the version."""
        self._socket.sendall(to_frame(Put(version)))
        self._receive()

    def bring(self, version: int, *, timeout_seconds: float) -> bool:
        """Whether the version is in this node's memory; the first call requests it."""
        if self._asked != version:
            self._asked = version
            self._socket.sendall(to_frame(Bring(version)))
        if self._arrived != version and select.select([self._socket], [], [], timeout_seconds)[0]:
            self._arrived = self._receive()
        return self._arrived == version

    def _receive(self) -> int:
        moved = self._reader.read()
        if moved is None or moved.error:
            reason = moved.error if moved else "the host of this worker is gone"
            raise WeightsError(f"weights could not be moved through Ray's object store: {reason}")
        return moved.version


def inherited_descriptors() -> tuple[int, ...]:
    """The two buffers and the socket that this worker inherited from its host."""
    return tuple(int(number) for number in os.environ[DESCRIPTORS_VARIABLE].split(","))
