"""The controller's side of a worker on a Ray cluster: typed messages to and from the host of its process.

    send ──► outbox ──► one call at a time, everything that has gathered ──► Host.deliver
    receive ◄── inbox ◄── one long poll after another ◄── Host.poll

A link exists before its worker does: until the cluster has room for it the link is not placed, and what is sent
gathers. Lost actors, lost nodes and the worker's own end all look the same: `receive` gives None and
`describe_end` the reason. A node that hangs or is cut off is noticed by its silence, and given up by `kill`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from freerun.backends.ray.demand import Demand
from freerun.backends.ray.host import StoredWeights
from freerun.errors import WorkerError
from freerun.processes.frames import Alive, MessageDecoder, to_frame
from freerun.processes.link import WorkerJob
from freerun.processes.patience import awake_clock
from freerun.processes.worker_process import log_tail
from freerun.types import Publication

M = TypeVar("M")
STOP_SECONDS = 5.0
MAX_REASON_CHARACTERS = 400
NUM_KEPT = 2
"""Versions that a worker may still be asked to load: the newest, and the one before while that is on its way."""


class PublishedWeights:
    """What workers may be asked to load, by version; what is forgotten is freed in the object store."""

    def __init__(self) -> None:
        self._stored: dict[int, StoredWeights] = {}

    def keep(self, stored: StoredWeights) -> None:
        self._stored[stored.version] = stored
        for old in sorted(self._stored)[:-NUM_KEPT]:
            del self._stored[old]

    def of(self, version: int) -> StoredWeights:
        return self._stored[version]


@dataclass(frozen=True)
class Site:
    """What all workers of a run have in common."""

    logs: Path
    directory: str
    """Where the controller was started: paths and a user's modules are found from here."""
    python_path: str
    paths: tuple[str, ...]
    """What every node must see under the same path."""
    weights: PublishedWeights


def _publication_in(message: Any) -> Publication | None:
    """What the message says is published: recognised by its shape."""
    published = getattr(message, "published", None)
    return published if isinstance(published, Publication) else None


class RayLink(Generic[M]):
    """Implements `link.Link`."""

    def __init__(
        self, job: WorkerJob, host: Any, receives: Any, *, demand: Demand, site: Site, on_end: Callable[[], None]
    ) -> None:
        self.name = job.name
        self._job = job
        self._host = host
        self._demand = demand
        self._site = site
        self._on_end = on_end
        self._decoder: MessageDecoder[M | Alive] = MessageDecoder(receives | Alive)
        self._log_path = (site.logs / f"{job.name}.log").resolve()
        self._log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
        self._loop = asyncio.get_running_loop()
        self._node = ""
        self._clock = awake_clock()
        self._last_heard = self._clock.time()
        self._inbox: asyncio.Queue[M | WorkerError | None] = asyncio.Queue()
        self._outbox: list[tuple[bytes, StoredWeights | None]] = []
        self._has_outgoing = asyncio.Event()
        self._end = ""
        self._is_sharing = False
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
        # Nobody polls while weights are put into the object store; how long that may take is the publication's.
        is_heard = not self._node or not self.is_alive or self._is_sharing
        return 0.0 if is_heard else self._clock.time() - self._last_heard

    def send(self, message: Any) -> None:
        frame = to_frame(message)
        published = _publication_in(message)
        weights = self._site.weights.of(published.version) if published and self._job.has_weights else None
        if self.is_alive:
            self._outbox.append((frame, weights))
            self._has_outgoing.set()

    async def receive(self) -> M | None:
        message = await self._inbox.get()
        if message is None:
            self._inbox.put_nowait(None)  # for whoever asks again
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
        """Wait for a place, start the worker there, and take in what it says until it ends."""
        try:
            await self._start(*await self._host.locate.remote(list(self._site.paths)))
            self._tasks.append(asyncio.create_task(self._deliver()))
            while self.is_alive:
                bodies, end = await self._host.poll.remote()
                await self._take_in(bodies)
                if end:
                    self._finish(end)
        except RayError as error:
            self._lose(error)
        except WorkerError as error:
            self._finish(str(error))

    async def _start(self, node: str, missing: str) -> None:
        if missing:
            raise WorkerError(
                f"{self.name}: {missing} is not there on node {node}; the run directory, the model and the "
                "working directory must be on a file system that all nodes see under the same paths"
            )
        self._node, self._last_heard = node, self._clock.time()
        await self._host.start.remote(
            name=self.name,
            module=self._job.module,
            log_path=str(self._log_path),
            num_threads=self._demand.num_threads,
            has_cores=self._demand.num_cpus > 0,
            directory=self._site.directory,
            python_path=self._site.python_path,
            has_weights=self._job.has_weights,
        )

    async def _deliver(self) -> None:
        """Send what has gathered, one call at a time, so that nothing overtakes weights that are being fetched."""
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                letters, self._outbox = self._outbox, []
                await self._host.deliver.remote(letters)
        except RayError as error:
            self._lose(error)

    async def _take_in(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._last_heard = self._clock.time()
            try:
                message = self._decoder.decode(body)
            except WorkerError as error:
                self._inbox.put_nowait(error)
                continue
            if isinstance(message, Alive):
                continue
            if self._job.role == "trainer" and (published := _publication_in(message)):
                # Before anyone hears of them, so that the reference is there for whoever is told to load them.
                self._is_sharing = True
                self._site.weights.keep(await self._host.share.remote(published.version))
                self._is_sharing, self._last_heard = False, self._clock.time()
            self._inbox.put_nowait(message)

    def _lose(self, error: RayError) -> None:
        self._was_taken_away = not isinstance(error, RayTaskError)
        self._finish(f"{self._who} is lost: {_reason(error)}{log_tail(self._log_path, self._log_start)}")

    def _finish(self, end: str) -> None:
        """From here on the worker counts as ended; what is left of it is cleared away beside."""
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
                pass  # it is gone, or out of reach: then its process ends with it
        with contextlib.suppress(RayError):  # the cluster itself may be gone
            ray.kill(self._host)
            self._on_end()


def _free() -> str:
    available = ray.available_resources()
    counts = {name: available.get(name, 0.0) for name in ("CPU", "GPU")}
    memory = int(available.get("memory", 0.0)) >> 20
    return ", ".join([*(f"{number:g} {name}" for name, number in counts.items()), f"{memory} MiB"])


def _reason(error: RayError) -> str:
    """The sentence of Ray's report that says why, without its table of identifiers."""
    if isinstance(error, RayTaskError):
        return str(error.cause)
    if isinstance(error, ActorUnavailableError):
        # What was on its way is lost, so the worker is, even if the node should come back.
        return "the connection to its node broke"
    text = str(error)
    if isinstance(error, RayActorError):
        lines = [line for line in text.splitlines() if not line.startswith("\t")]
        text = " ".join(lines[1:]) or text
    return text[:MAX_REASON_CHARACTERS].strip().rstrip(".")
