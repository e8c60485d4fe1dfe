"""Launches workers as child processes of this one, each on the cores that were set aside for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freerun.processes.child import Child
from freerun.processes.link import WorkerJob


@dataclass(frozen=True)
class Seat:
    """What a worker gets of a machine."""

    num_threads: int = 1
    cores: tuple[int, ...] = ()
    """Empty leaves the choice to the kernel."""


class LocalLauncher:
    """Implements `link.Launcher`; a worker without a seat floats with one thread."""

    def __init__(self, logs: Path, seats: Mapping[str, Seat], *, weight_buffers: Sequence[int] = ()) -> None:
        self._logs = logs
        self._seats = seats
        self._weight_buffers = tuple(weight_buffers)
        """Descriptors of shared memory, inherited by workers that have weights; ours to close."""

    async def launch(self, job: WorkerJob, receives: Any) -> Child[Any]:
        seat = self._seats.get(job.name, Seat())
        return await Child.start(
            job.name,
            job.module,
            receives=receives,
            log_path=self._logs / f"{job.name}.log",
            num_threads=seat.num_threads,
            cores=seat.cores,
            inherited_fds=self._weight_buffers if job.has_weights else (),
        )

    async def close(self) -> None:
        for descriptor in self._weight_buffers:
            os.close(descriptor)
        self._weight_buffers = ()
