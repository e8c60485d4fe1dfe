"""The controller's side of a worker on a Ray cluster: typed messages to and from the host of its process.

    send ──► outbox ──► one call at a time, everything that has gathered ──► Host.deliver
    receive ◄── inbox ◄── one long poll after another ◄── Host.poll

A link exists before its worker: until the cluster has room it is not placed, and what is sent is queued. Lost
actors, lost nodes and the worker's own end look the same: `receive` returns None and `describe_end` the reason. A
node that hangs or is cut off is noticed by its silence and dropped with `kill`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from freerun.backends.ray.demand import Demand
from freerun.backends.ray.node_buffers import Holder
from freerun.errors import WorkerError
from freerun.processes.frames import Alive, MessageDecoder, to_frame
from freerun.processes.link import WorkerJob
from freerun.processes.patience import awake_clock
from freerun.processes.worker_process import log_tail

M = TypeVar("M")
STOP_SECONDS = 5.0
MAX_REASON_CHARACTERS = 400


@dataclass(frozen=True)
class Site:
    """Settings shared by all workers of a run."""

    logs: Path
    directory: str
    """The controller's working directory: paths and user modules are relative to it."""
    python_path: str
    paths: tuple[str, ...]
    """Paths that every node must see."""


class BufferHolders:
    """The hosts that hold each node's weight buffers; hosts that start on the same node do so one at a time."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._holders: dict[str, list[tuple[RayLink[Any], Holder]]] = defaultdict(list)

    async def add(self, link: RayLink[Any], host: Any, *, name: str, node: str) -> None:
        """Have the host open the buffers of its node, or create them if it is the first."""
        async with self._turns[node]:
            living = [(other, holder) for other, holder in self._holders[node] if other.is_alive]
            holder = await host.hold_buffers.remote(name, [holder for _, holder in living])
            self._holders[node] = [*living, (link, holder)]


class RayLink(Generic[M]):
    """Implements `link.Link`."""

    def __init__(
        self,
        job: WorkerJob,
        host: Any,
        receives: Any,
        *,
        demand: Demand,
        site: Site,
        holders: BufferHolders,
        on_end: Callable[[], None],
    ) -> None:
        self.name = job.name
        self._job = job
        self._host = host
        self._demand = demand
        self._site = site
        self._holders = holders
        self._on_end = on_end
        self._decoder: MessageDecoder[M | Alive] = MessageDecoder(receives | Alive)
        self._log_path = (site.logs / f"{job.name}.log").resolve()
        self._log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
        self._loop = asyncio.get_running_loop()
        self._node = ""
        self._clock = awake_clock()
        self._last_heard = self._clock.time()
        self._inbox: asyncio.Queue[M | WorkerError | None] = asyncio.Queue()
        self._outbox: list[bytes] = []
        self._has_outgoing = asyncio.Event()
        self._end = ""
        self._was_taken_away = False
        self._ending: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._live())]

    @property
    def is_alive(self) -> bool:
        return self._ending is None

    @property
    def is_placed(self) -> bool:
        return bool(self._node) or not self.is_alive

    @property
    def was_taken_away(self) -> bool:
        return self._was_taken_away

    @property
    def seconds_silent(self) -> float:
        return self._clock.time() - self._last_heard if self._node and self.is_alive else 0.0

    def send(self, message: Any) -> None:
        frame = to_frame(message)
        if self.is_alive:
            self._outbox.append(frame)
            self._has_outgoing.set()

    async def receive(self) -> M | None:
        message = await self._inbox.get()
        if message is None:
            self._inbox.put_nowait(None)  # keep the end of the inbox for the next call
        if isinstance(message, WorkerError):
            raise message
        return message

    def kill(self) -> None:
        if self.is_alive:
            killed = f"{self._who} was killed{log_tail(self._log_path, self._log_start)}"
            self._finish(killed if self._node else self.describe_end())

    async def wait(self, timeout_seconds: float) -> object:
        deadline = self._loop.time() + timeout_seconds
        while self._loop.time() < deadline and (self._ending is None or not self._ending.done()):
            await asyncio.sleep(0.02)
        return None

    def describe_end(self) -> str:
        if self._ending is not None:
            return self._end
        if not self._node:
            return f"{self.name} waits for room in the cluster: {self._demand} wanted, free: {_free()}"
        return f"{self._who} is still alive"

    @property
    def _who(self) -> str:
        return f"{self.name} on node {self._node}" if self._node else self.name

    async def _live(self) -> None:
        """Wait for a place, start the worker there, and receive its messages until it ends."""
        try:
            await self._start(*await self._host.locate.remote(list(self._site.paths)))
            self._tasks.append(asyncio.create_task(self._deliver()))
            while self.is_alive:
                bodies, end = await self._host.poll.remote()
                self._take_in(bodies)
                if end:
                    self._finish(end)
        except RayError as error:
            self._lose(error)
        except WorkerError as error:
            self._finish(str(error))

    async def _start(self, node: str, node_id: str, missing: str) -> None:
        if missing:
            raise WorkerError(
                f"{self.name}: {missing} does not exist on node {node}; put the run directory, the model and the "
                "working directory on a file system that all nodes see under the same paths"
            )
        self._node, self._last_heard = node, self._clock.time()
        weights = self._job.weights.address if self._job.weights else ""
        if weights:
            await self._holders.add(self, self._host, name=weights, node=node_id)
        await self._host.start.remote(
            name=self.name,
            module=self._job.module,
            log_path=str(self._log_path),
            num_threads=self._demand.num_threads,
            has_cores=self._demand.num_cpus > 0,
            directory=self._site.directory,
            python_path=self._site.python_path,
            weights=weights,
        )

    async def _deliver(self) -> None:
        """Send pending messages, one call at a time: calls to an actor with coroutines may overtake each other."""
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                frames, self._outbox = self._outbox, []
                await self._host.deliver.remote(frames)
        except RayError as error:
            self._lose(error)

    def _take_in(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._last_heard = self._clock.time()
            try:
                message = self._decoder.decode(body)
            except WorkerError as error:
                self._inbox.put_nowait(error)
                continue
            if not isinstance(message, Alive):
                self._inbox.put_nowait(message)

    def _lose(self, error: RayError) -> None:
        self._was_taken_away = not isinstance(error, RayTaskError)
        self._finish(f"{self._who} is lost: {_reason(error)}{log_tail(self._log_path, self._log_start)}")

    def _finish(self, end: str) -> None:
        """Mark the worker as ended; a task cleans up the rest."""
        if self._ending is None:
            self._end = end
            self._inbox.put_nowait(None)
            self._outbox = []
            self._ending = asyncio.create_task(self._clear_away())

    async def _clear_away(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._node:
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    self._end = await self._host.stop.remote() or self._end
            except (TimeoutError, RayError):
                pass  # it is gone or unreachable; its process ends with it
        with contextlib.suppress(RayError):  # the cluster itself may be gone
            ray.kill(self._host)
            self._on_end()


def _free() -> str:
    available = ray.available_resources()
    counts = {name: available.get(name, 0.0) for name in ("CPU", "GPU")}
    memory = int(available.get("memory", 0.0)) >> 20
    return ", ".join([*(f"{number:g} {name}" for name, number in counts.items()), f"{memory} MiB"])


def _reason(error: RayError) -> str:
    """The sentence of Ray's report that gives the reason, without its table of identifiers."""
    if isinstance(error, RayTaskError):
        return str(error.cause)
    if isinstance(error, ActorUnavailableError):
        # Messages in flight are lost, so the worker is too, even if the node comes back.
        return "the connection to its node broke"
    text = str(error)
    if isinstance(error, RayActorError):
        lines = [line for line in text.splitlines() if not line.startswith("\t")]
        text = " ".join(lines[1:]) or text
    return text[:MAX_REASON_CHARACTERS].strip().rstrip(".")
