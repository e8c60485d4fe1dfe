"""An event loop whose clock jumps to the next thing that happens: hours of a run in milliseconds."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing is ready to run, and then all at once."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def stand_still(self, seconds: float) -> None:
        """As if the process had been stopped and continued: timers that were due fire before anything is read."""
        self._now += seconds

    def _run_once(self) -> None:
        # Of the timers that are still to fire: for one that was cancelled the selector would wait in real time.
        if not self._ready and (times := [timer._when for timer in self._scheduled if not timer._cancelled]):
            self._now = max(self._now, min(times))
        super()._run_once()  # type: ignore[misc]  # asyncio keeps it to itself


def stand_still(seconds: float) -> None:
    """The running loop is stopped for a while, and continued."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stand_still(seconds)


def run_in_virtual_time(main: Coroutine[Any, Any, R]) -> R:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
