"""Weight buffers for two versions, shared by all workers of a run on one node and filled once for all of them.

    first host of the node ── creates ──► buffers, labels ◄── open them through /proc ── later hosts
                                             ▲
    workers ── inherit descriptors ──────────┘

No host owns the memory. It is anonymous and exists as long as a process holds it, so any host may die. A host
that needs a missing version takes the lock, fills the buffer, and labels it. The kernel releases the lock of a
host that dies. A buffer has no label while it is being filled, so the next host fills a half-written one again.

The buffers follow the contract of `freerun.weights.shared`. A host whose worker has been given up for dead may
still ask late, so a buffer is never filled with an older version than it has. Where the trainer publishes,
nothing is filled: the trainer's buffers are the node's, and are labelled before any worker is told to load.

This module imports neither torch nor Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from freerun.errors import WorkerError
from freerun.weights.buffers import NUM_BUFFERS, create_buffers

NO_VERSION = -1
LABEL_BYTES = 8
LOCK_POLL_SECONDS = 0.02
WRITE_BYTES = 1 << 30


class Holder(NamedTuple):
    """A process of the node that holds the buffers, and its file descriptors of buffers and labels."""

    pid: int
    descriptors: tuple[int, ...]


class NodeBuffers:
    """One host's view of its node's buffers."""

    def __init__(self, buffers: Sequence[int], labels: int) -> None:
        self.descriptors = tuple(buffers)
        """File descriptors for workers to inherit, without the labels: workers would share their lock."""
        self._file = labels
        self._labels = memoryview(mmap.mmap(labels, NUM_BUFFERS * LABEL_BYTES)).cast("q")

    @classmethod
    def create(cls, name: str) -> NodeBuffers:
        """Create empty buffers, for the first host of a node; `name` identifies the run's weights."""
        labels = os.memfd_create(f"{name}-labels")
        os.ftruncate(labels, NUM_BUFFERS * LABEL_BYTES)
        created = cls(create_buffers(name), labels)
        for index in range(NUM_BUFFERS):
            created._labels[index] = NO_VERSION
        return created

    @classmethod
    def open(cls, name: str, holders: Sequence[Holder]) -> NodeBuffers | None:
        """Open the buffers of the first holder that is still alive; None if none is."""
        for holder in holders:
            # The pid may belong to another process by now, so only memory of this run is opened.
            expected = [*(f"{name}-{index}" for index in range(NUM_BUFFERS)), f"{name}-labels"]
            paths = [f"/proc/{holder.pid}/fd/{descriptor}" for descriptor in holder.descriptors]
            try:
                if [os.readlink(path) for path in paths] == [f"/memfd:{one} (deleted)" for one in expected]:
                    *buffers, labels = [os.open(path, os.O_RDWR) for path in paths]
                    return cls(buffers, labels)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except PermissionError as error:
                raise WorkerError(
                    f"the weights that process {holder.pid} holds for all workers of its node cannot be opened "
                    f"({error}); start the node so that all its actors run as one user and see each other's /proc"
                ) from error
        return None

    @property
    def holder(self) -> Holder:
        """This process as a holder, for hosts that start later."""
        return Holder(os.getpid(), (*self.descriptors, self._file))

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep other hosts of the node from filling; ends with this process at the latest."""
        while not self._try_to_lock():
            await asyncio.sleep(LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _try_to_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def has(self, version: int) -> bool:
        """Whether the version is in its buffer; raises `ValueError` if a newer one is."""
        present = self._labels[version % NUM_BUFFERS]
        if present > version:
            raise ValueError(f"version {version} is no longer wanted: version {present} is in its buffer")
        return present == version

    def label(self, version: int) -> None:
        """Mark this version as complete in its buffer."""
        self._labels[version % NUM_BUFFERS] = version

    def fill(self, version: int, content: memoryview) -> None:
        """Copy a version into its buffer; the caller must hold the lock. Workers confirm the checksum."""
        descriptor = self.descriptors[version % NUM_BUFFERS]
        size = os.fstat(descriptor).st_size
        if size == 0:
            os.ftruncate(descriptor, content.nbytes)
        elif size != content.nbytes:  # truncating it would kill processes that have mapped it
            raise ValueError(f"version {version} has {content.nbytes} bytes, the buffers of this node have {size}")
        self._labels[version % NUM_BUFFERS] = NO_VERSION
        begin = 0
        while begin < content.nbytes:
            begin += os.pwrite(descriptor, content[begin : begin + WRITE_BYTES], begin)
        self.label(version)
