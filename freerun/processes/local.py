"""Workers as child processes of this machine, each on its cores, with typed messages to and from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from freerun.processes.frames import Alive, MessageDecoder, to_frame
from freerun.processes.link import WorkerJob
from freerun.processes.patience import awake_clock
from freerun.processes.worker_process import WorkerProcess
from freerun.types import WeightRoute

M = TypeVar("M")


@dataclass(frozen=True)
class Seat:
    """The cores and threads of a worker on this machine."""

    num_threads: int = 1
    cores: tuple[int, ...] = ()
    """Empty if the kernel chooses."""


class LocalLauncher:
    """Implements `link.Launcher`; a worker without a seat is not pinned and has one thread."""

    def __init__(self, logs: Path, seats: Mapping[str, Seat], *, weights: WeightRoute | None = None) -> None:
        self._logs = logs
        self._seats = seats
        self.weights = weights
        """The launcher closes its file descriptors."""
        self._children: dict[str, Child[Any]] = {}
        """The newest process of each worker."""

    async def launch(self, job: WorkerJob, receives: Any) -> Child[Any]:
        seat = self._seats.get(job.name, Seat())
        child: Child[Any] = await Child.start(
            job.name,
            job.module,
            receives=receives,
            log_path=self._logs / f"{job.name}.log",
            num_threads=seat.num_threads,
            cores=seat.cores,
            inherited_fds=job.weights.descriptors if job.weights else (),
        )
        self._children[job.name] = child
        return child

    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._children.items() if child.is_alive}

    async def close(self) -> None:
        for descriptor in self.weights.descriptors if self.weights else ():
            os.close(descriptor)
        self.weights = None


class Child(Generic[M]):
    """Implements `link.Link`."""

    def __init__(self, process: WorkerProcess, message_type: Any) -> None:
        self.name, self.pid = process.name, process.pid
        self.kill, self.wait, self.describe_end = process.kill, process.wait, process.describe_end
        self._process = process
        self._decoder: MessageDecoder[M | Alive] = MessageDecoder(message_type | Alive)
        self._clock = awake_clock()
        self._last_heard = self._clock.time()

    @classmethod
    async def start(cls, name: str, module: str, *, receives: Any, log_path: Path, **options: Any) -> Child[M]:
        """Run `python -m module` as a `WorkerProcess`; `receives` is the union of its messages to us."""
        return cls(await WorkerProcess.start(name, module, log_path=log_path, **options), receives)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    @property
    def is_placed(self) -> bool:
        return True

    @property
    def was_taken_away(self) -> bool:
        return self._process.was_taken_away

    @property
    def seconds_silent(self) -> float:
        return self._clock.time() - self._last_heard

    def send(self, message: Any) -> None:
        self._process.write(to_frame(message))  # a message that cannot be encoded is a bug and raises here

    async def receive(self) -> M | None:
        while (body := await self._process.read()) is not None:
            self._last_heard = self._clock.time()
            message = self._decoder.decode(body)
            if not isinstance(message, Alive):
                return message
        return None
