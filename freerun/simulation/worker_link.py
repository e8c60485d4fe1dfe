"""Simulated workers behind the interface of `processes/link.py`; everything above it is real.

    RolloutPool, TrainerClient, GraderPool ──send──► SimulatedLink ──take──► SimulatedWorker
                                           ◄receive─               ◄─tell──

A worker is an object of this process that answers through its link, immediately or after some virtual time.
Messages are not encoded. What can happen to a process happens to its link: it ends, falls silent, sends
nonsense, or loses its machine.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from freerun.errors import WorkerError
from freerun.processes.link import WorkerJob
from freerun.processes.patience import awake_clock
from freerun.types import WeightRoute

ROUTE = WeightRoute(channel="simulated")
"""Weights have no bytes here: a version number represents them."""


class SimulatedWorker(Protocol):
    """The program in the worker's process."""

    def take(self, message: Any) -> None:
        """Handle a message of the controller."""

    def end(self) -> None:
        """The process is gone: do nothing from now on."""


MakeWorker = Callable[["SimulatedLink"], SimulatedWorker]


class SimulatedLink:
    """Implements `link.Link`; `tell` and the methods after it are the worker's side."""

    def __init__(self, name: str, make_worker: MakeWorker, *, is_placed: bool = True) -> None:
        self.name = name
        self.is_alive = True
        self.is_placed = is_placed
        self.was_taken_away = False
        self._loop = asyncio.get_running_loop()
        self._clock = awake_clock()
        self._inbox: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._end_reason = ""
        self._silent_since: float | None = None
        self.worker = make_worker(self)

    # ---- the controller's side ------------------------------------------------------------------

    @property
    def seconds_silent(self) -> float:
        return 0.0 if self._silent_since is None else self._clock.time() - self._silent_since

    def send(self, message: Any) -> None:
        if self.is_alive:
            self.worker.take(message)

    async def receive(self) -> Any:
        while not self._inbox:
            if not self.is_alive:
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._inbox.popleft()
        if isinstance(message, WorkerError):
            raise message
        return message

    def kill(self) -> None:
        self.die("it was killed")

    async def wait(self, timeout_seconds: float) -> None:
        if self.is_alive:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._ended.wait()
            except TimeoutError:
                pass

    def describe_end(self) -> str:
        if not self.is_placed:
            return f"{self.name} waits for a place"
        return f"{self.name} {f'ended: {self._end_reason}' if self._end_reason else 'is alive'}"

    # ---- the worker's side ----------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        """Send a message to the controller; lost if the process has ended or fallen silent."""
        if self.is_alive and self._silent_since is None:
            self._inbox.append(message)
            self._wake()

    def die(self, reason: str) -> None:
        """End the process; what it has already sent still arrives."""
        if self.is_alive:
            self.is_alive = False
            self._end_reason = reason
            self.worker.end()
            self._ended.set()
            self._wake()

    def take_away(self) -> None:
        """Kill the process from outside, alone or with its machine."""
        if self.is_alive:
            self.was_taken_away = True
            self.die("it was taken away")

    def fall_silent(self) -> None:
        """Stop the process: not even a heartbeat arrives."""
        if self._silent_since is None:
            self._silent_since = self._clock.time()

    def send_nonsense(self) -> None:
        """Send something that is not a message."""
        self.tell(WorkerError("received an unexpected message of 13 bytes"))

    def place(self) -> None:
        """Place the worker: the cluster has found a machine for it."""
        self.is_placed = True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SimulatedLauncher:
    """Implements `link.Launcher`; `make_worker` makes a job's worker, or raises `OSError` for lack of room."""

    def __init__(self, make_worker: Callable[[WorkerJob, SimulatedLink], SimulatedWorker]) -> None:
        self.weights: WeightRoute | None = ROUTE
        self.links: dict[str, SimulatedLink] = {}
        """The newest link of each worker."""
        self._make_worker = make_worker

    async def launch(self, job: WorkerJob, receives: Any) -> SimulatedLink:
        link = SimulatedLink(job.name, lambda link: self._make_worker(job, link))
        self.links[job.name] = link
        return link

    def pids(self) -> Mapping[str, int]:
        return {}

    async def close(self) -> None: ...
