"""The actor that hosts one worker on a node of a Ray cluster: it starts the worker's process and passes frames on.

    controller ◄── frames, in order ──► host ◄── socket ──► worker       as on one machine
                                         ╵── memory ──────► worker       its own pair of weight buffers

It does not look into frames. The worker is a child of this process (`freerun.processes.worker_process`), with its
cores, its log and its end as in a local run: it is killed with the actor, by the kernel, whatever ends the actor.
For that its thread must live as long as the actor: all methods are coroutines, which Ray runs in one thread.

Weights go through Ray's object store, which moves them once to each node, however many workers fetch them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from freerun.errors import WorkerError
from freerun.processes.core_claims import CoreClaim, claim_cores
from freerun.processes.worker_process import WorkerProcess
from freerun.weights.buffers import NUM_BUFFERS, create_buffers

POLL_SECONDS = 1.0
END_SECONDS = 5.0
WRITE_BYTES = 1 << 30


class StoredWeights(NamedTuple):
    """Published weights in the object store, as long as somebody holds their reference.

    A reference travels inside of this: an argument or a result by itself would be replaced by what it refers to.
    """

    version: int
    reference: Any


class Host:
    """Hosts one worker; every argument and result is of plain values, bytes or references."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._buffers: tuple[int, ...] = ()
        self._reading: asyncio.Task[None] | None = None
        self._problem = ""
        self._claim = CoreClaim()

    async def locate(self, paths: Sequence[str]) -> tuple[str, str]:
        """The node's address, and the first of `paths` that it cannot see, if any."""
        missing = next((path for path in paths if not Path(path).exists()), "")
        return ray.util.get_node_ip_address(), missing

    async def start(
        self,
        name: str,
        module: str,
        log_path: str,
        num_threads: int,
        has_cores: bool,
        directory: str,
        python_path: str,
        has_weights: bool,
    ) -> None:
        """Start the worker in `directory`, which all nodes see under the same path."""
        address = ray.util.get_node_ip_address()
        if has_weights:
            self._buffers = create_buffers(f"freerun-{name}")
        if has_cores:
            self._claim = claim_cores(os.sched_getaffinity(0), num_threads)
        self._process = await WorkerProcess.start(
            f"{name} on node {address}",
            module,
            log_path=Path(log_path),
            num_threads=num_threads,
            cores=self._claim.cores,
            inherited_fds=self._buffers,
            environment=os.environ | {"FREERUN_HOST": address, "PYTHONPATH": python_path},
            directory=directory,
            search_path=(),  # the node's own: ours is Ray's
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def deliver(self, letters: Sequence[tuple[bytes, StoredWeights | None]]) -> None:
        """Pass frames to the worker, in order; the weights that one speaks of are in the buffer before it."""
        assert self._process is not None
        for frame, weights in letters:
            if weights is not None:
                await asyncio.to_thread(self._fill, weights.version, await weights.reference)
            self._process.write(frame)

    async def poll(self) -> tuple[list[bytes], str]:
        """What the worker has said since the last call, at most a second later; and how it ended, if it has."""
        bodies = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                bodies.append(await self._inbox.get())
        while not self._inbox.empty():
            bodies.append(self._inbox.get_nowait())
        end = await self.stop() if None in bodies else ""
        return [body for body in bodies if body is not None], end

    async def share(self, version: int) -> StoredWeights:
        """Put the worker's weights of this version into the object store."""
        return StoredWeights(version, await asyncio.to_thread(self._put, version))

    def _put(self, version: int) -> Any:
        with mmap.mmap(self._buffers[version % NUM_BUFFERS], 0, prot=mmap.PROT_READ) as memory:
            content = np.frombuffer(memory, dtype=np.uint8)
            try:
                return ray.put(content)
            finally:
                del content  # or the mapping could not be closed

    async def stop(self) -> str:
        """End the worker and all that it started, and say how it ended."""
        if self._process is None:
            return ""
        if self._inbox.empty() and self._reading is not None and self._reading.done():
            await self._process.wait(END_SECONDS)  # by itself, so that its own exit status is reported
        self._process.kill()
        await self._process.wait(END_SECONDS)
        self._claim.release()
        return self._problem + self._process.describe_end()

    async def _read(self, process: WorkerProcess) -> None:
        try:
            while (body := await process.read()) is not None:
                self._inbox.put_nowait(body)
        except WorkerError as error:
            self._problem = f"{error}; "
            process.kill()
        self._inbox.put_nowait(None)

    def _fill(self, version: int, content: np.ndarray) -> None:
        """Copy published weights into the worker's buffer of their version; the worker confirms the checksum."""
        descriptor = self._buffers[version % NUM_BUFFERS]
        if os.fstat(descriptor).st_size != content.nbytes:
            os.ftruncate(descriptor, content.nbytes)
        for begin in range(0, content.nbytes, WRITE_BYTES):
            view = content.data[begin : begin + WRITE_BYTES]
            while view:
                written = os.pwrite(descriptor, view, begin)
                view, begin = view[written:], begin + written
