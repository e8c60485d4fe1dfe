"""The actor that hosts one worker on a node of a Ray cluster: starts its process and forwards frames.

    controller ◄── frames, in order ──► host ◄── socket ──► worker       as on one machine

It does not look into frames. The worker is a child of this process (`freerun.processes.worker_process`), with
cores, log and end as in a local run: the kernel kills it when the actor ends for any reason. That is tied to the
thread that started it, so all methods are coroutines, which Ray runs in one thread.

Weights do not pass through frames: the worker asks for them on another socket (`transfer.py`).
"""

import asyncio
import contextlib
import mmap
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayError

from freerun.backends.ray.node_buffers import Holder, NodeBuffers
from freerun.backends.ray.transfer import DESCRIPTORS_VARIABLE, Bring, Moved, Put
from freerun.errors import WorkerError
from freerun.processes import supervision
from freerun.processes.core_claims import CoreClaim, claim_cores
from freerun.processes.frames import FrameStream, MessageDecoder, to_frame
from freerun.processes.worker_process import WorkerProcess
from freerun.weights.buffers import NUM_BUFFERS

LONG_POLL_SECONDS = 1.0
NUM_KEPT = 2
"""Versions that a worker may still have to load: the newest, and the previous one during publication."""


class StoredWeights(NamedTuple):
    """Published weights in the object store, freed when the last reference is gone.

    Ray replaces a bare reference in an argument or a result by its value, so it travels inside a tuple.
    """

    version: int
    reference: Any


class WeightTransfer:
    """Moves weights between the buffers of this node and the object store, at the request of this host's worker.

    The trainer's host keeps the newest versions in the store; the other hosts find it by its actor name. Ray moves
    an object once to each node, and one host of the node copies it into the buffers.
    """

    def __init__(self, buffers: NodeBuffers, trainer: str) -> None:
        self._trainer = trainer
        self._buffers = buffers
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._stored: dict[int, StoredWeights] = {}
        self._serving: asyncio.Task[None] | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors for the worker to inherit."""
        return (*self._buffers.descriptors, self._theirs.fileno())

    def serve(self) -> None:
        """Start answering the worker; call it once the worker has inherited its descriptors."""
        self._theirs.close()
        self._serving = asyncio.create_task(self._serve())

    def stored(self, version: int) -> StoredWeights:
        return self._stored[version]

    async def _serve(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._ours)
        stream: FrameStream = FrameStream(reader)
        decoder: MessageDecoder[Put | Bring] = MessageDecoder(Put | Bring)
        while (body := await stream.read()) is not None:
            writer.write(to_frame(await self._move(decoder.decode(body))))

    async def _move(self, request: Put | Bring) -> Moved:
        version = request.version
        try:
            await (self._share(version) if isinstance(request, Put) else self._bring(version))
        except (RayError, OSError, ValueError) as error:
            # A ValueError says that the trainer's host is gone, or that a newer version is in the buffer.
            return Moved(version, error=f"{type(error).__name__}: {error}")
        return Moved(version)

    async def _share(self, version: int) -> None:
        self._stored[version] = StoredWeights(version, await asyncio.to_thread(self._put, version))
        for old in sorted(self._stored)[:-NUM_KEPT]:
            del self._stored[old]
        self._buffers.label(version)

    def _put(self, version: int) -> Any:
        with mmap.mmap(self._buffers.descriptors[version % NUM_BUFFERS], 0, prot=mmap.PROT_READ) as memory:
            content = np.frombuffer(memory, dtype=np.uint8)
            try:
                return ray.put(content)
            finally:
                del content  # otherwise the mapping could not be closed

    async def _bring(self, version: int) -> None:
        if self._buffers.has(version):
            return
        async with self._buffers.locked():
            if self._buffers.has(version):
                return  # another host of the node has already done it
            trainer = await asyncio.to_thread(ray.get_actor, self._trainer)
            stored = await trainer.stored_weights.remote(version)
            content = await stored.reference
            await asyncio.to_thread(self._buffers.fill, version, content.data)


class Host:
    """Hosts one worker; arguments and results are plain values, bytes or references."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._buffers: NodeBuffers | None = None
        self._transfer: WeightTransfer | None = None
        self._reading: asyncio.Task[None] | None = None
        self._problem = ""
        self._claim = CoreClaim()

    async def locate(self, paths: Sequence[str]) -> tuple[str, str, str]:
        """The node's address and identifier, and the first of `paths` that it cannot see, if any."""
        missing = next((path for path in paths if not Path(path).exists()), "")
        return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id(), missing

    async def hold_buffers(self, name: str, holders: Sequence[Holder]) -> Holder:
        """Open the buffers of this node, held by `holders`, or create them; call it before `start`."""
        self._buffers = NodeBuffers.open(name, holders) or NodeBuffers.create(name)
        return self._buffers.holder

    async def start(
        self,
        name: str,
        module: str,
        log_path: str,
        num_threads: int,
        has_cores: bool,
        directory: str,
        python_path: str,
        weights: str,
    ) -> None:
        """Start the worker in `directory`, which all nodes see under the same path.

        `weights` is the actor that hosts the trainer, for a worker that publishes or loads weights.
        """
        address = ray.util.get_node_ip_address()
        environment = os.environ | {"FREERUN_HOST": address, "PYTHONPATH": python_path}
        if weights:
            assert self._buffers is not None
            self._transfer = WeightTransfer(self._buffers, weights)
            environment[DESCRIPTORS_VARIABLE] = ",".join(map(str, self._transfer.descriptors))
        if has_cores:
            self._claim = claim_cores(os.sched_getaffinity(0), num_threads)
        self._process = await WorkerProcess.start(
            f"{name} on node {address}",
            module,
            log_path=Path(log_path),
            num_threads=num_threads,
            cores=self._claim.cores,
            inherited_fds=self._transfer.descriptors if self._transfer else (),
            environment=environment,
            directory=directory,
            search_path=(),  # the node's own search path: ours is Ray's
        )
        if self._transfer:
            self._transfer.serve()
        self._reading = asyncio.create_task(self._read(self._process))

    async def deliver(self, frames: Sequence[bytes]) -> None:
        assert self._process is not None
        for frame in frames:
            self._process.write(frame)

    async def poll(self) -> tuple[list[bytes], str]:
        """The worker's frames since the last call, after at most a second, and how it ended if it has."""
        bodies = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONG_POLL_SECONDS):
                bodies.append(await self._inbox.get())
        while not self._inbox.empty():
            bodies.append(self._inbox.get_nowait())
        end = await self.stop() if None in bodies else ""
        return [body for body in bodies if body is not None], end

    async def stored_weights(self, version: int) -> StoredWeights:
        """A version that the worker has published; only for the trainer's host."""
        assert self._transfer is not None
        return self._transfer.stored(version)

    async def stop(self) -> str:
        """End the worker and everything it started; returns how it ended."""
        if self._process is None:
            return ""
        is_closed = self._inbox.empty() and self._reading is not None and self._reading.done()
        how = await supervision.end(self._process, is_closed=is_closed)
        self._claim.release()
        return self._problem + how

    async def _read(self, process: WorkerProcess) -> None:
        try:
            while (body := await process.read()) is not None:
                self._inbox.put_nowait(body)
        except WorkerError as error:
            self._problem = f"{error}; "
            process.kill()
        self._inbox.put_nowait(None)
