"""Launches workers as child processes, each on its cores."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freerun.processes.child import Child
from freerun.processes.link import WorkerJob
from freerun.types import WeightRoute


@dataclass(frozen=True)
class Seat:
    """A worker's share of a machine."""

    num_threads: int = 1
    cores: tuple[int, ...] = ()
    """Empty: the kernel chooses."""


class LocalLauncher:
    """Implements `link.Launcher`; a worker without a seat floats with one thread."""

    def __init__(self, logs: Path, seats: Mapping[str, Seat], *, weights: WeightRoute | None = None) -> None:
        self._logs = logs
        self._seats = seats
        self.weights = weights
        """Its descriptors are ours to close."""

    async def launch(self, job: WorkerJob, receives: Any) -> Child[Any]:
        seat = self._seats.get(job.name, Seat())
        return await Child.start(
            job.name,
            job.module,
            receives=receives,
            log_path=self._logs / f"{job.name}.log",
            num_threads=seat.num_threads,
            cores=seat.cores,
            inherited_fds=job.weights.descriptors if job.weights else (),
        )

    async def close(self) -> None:
        for descriptor in self.weights.descriptors if self.weights else ():
            os.close(descriptor)
        self.weights = None
