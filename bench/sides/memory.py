"""The peak memory of a process and all its descendants. Standard library only.

Proportional set size: a page mapped by several processes, such as weights in shared memory, counts once in total.
It is sampled, so a peak shorter than the interval may be missed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

INTERVAL_SECONDS = 0.5


class PeakMemory:
    """Samples in the background between `with` and its end; `peak_bytes` is the largest sum seen."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(INTERVAL_SECONDS):
            self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, _family(self._pid))))


def _family(pid: int) -> list[int]:
    """The process and all its descendants."""
    family = [pid]
    for member in family:
        family += _children(member)
    return family


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it ended meanwhile
        return []


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
