"""Periodic reports about the run's processes: what graders do, and the CPU and memory of each process."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import psutil

from freerun.events.events import GraderReport, ProcessReport, ProcessUse
from freerun.session.lifetime import Lifetime

GRADERS_SECONDS = 2.0
PROCESSES_SECONDS = 5.0


class ProcessWatch:
    """A background task of the run; makes a last report when it is cancelled."""

    def __init__(
        self,
        life: Lifetime,
        *,
        pids: Callable[[], Mapping[str, int]],
        graders: Callable[[float], Sequence[GraderReport]],
    ) -> None:
        self._life = life
        self._pids = pids
        self._graders = graders

    async def run(self) -> None:
        next_look = 0.0
        try:
            while True:
                self._report_graders()
                if self._life.seconds >= next_look:
                    next_look = self._life.seconds + PROCESSES_SECONDS
                    # In a thread: reading the process table takes time on a busy machine.
                    uses = await asyncio.to_thread(measure, self._pids())
                    self._life.emit(ProcessReport(seconds=self._life.seconds, processes=uses))
                await asyncio.sleep(GRADERS_SECONDS)
        finally:
            self._report_graders()

    def _report_graders(self) -> None:
        for report in self._graders(self._life.seconds):
            self._life.emit(report)


def measure(pids: Mapping[str, int]) -> tuple[ProcessUse, ...]:
    """Resource usage of these processes; processes that have ended are omitted."""
    uses = []
    for worker, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                memory_bytes = process.memory_info().rss
        except psutil.Error:
            continue
        uses.append(
            ProcessUse(worker=worker, cpu_seconds=float(times.user + times.system), memory_bytes=int(memory_bytes))
        )
    return tuple(uses)
