"""An event loop whose clock jumps to the next timer: hours of a run in milliseconds.

Nothing happens outside the loop: there is no selector, and functions for a thread run immediately. Two ways to
hang are therefore errors: `DeadlockError`, if nothing is left to wait for, and `TimeLimitError`, if the clock
passes a limit (a run whose timers tick forever never deadlocks).

Callbacks run in the order that asyncio guarantees, so the same program always takes the same course.
"""

import asyncio
import heapq
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from freerun.processes.garbage import searching_less_often

R = TypeVar("R")
MAX_CLEANUP_SECONDS = 1000.0
"""Time after the limit in which cancelled tasks may end."""


class DeadlockError(RuntimeError):
    """No callback is ready and no timer is set, but the main task has not ended."""


class TimeLimitError(RuntimeError):
    """The clock passed the limit before the main task ended."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only while nothing is ready to run, and then all at once."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, *, max_seconds: float = math.inf) -> None:
        super().__init__(_NoSelector())
        self._now = 0.0
        self._max_seconds = max_seconds

    def time(self) -> float:
        return self._now

    def stand_still(self, seconds: float) -> None:
        """Simulate that the process was stopped and continued: due timers fire before anything is read."""
        self._now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., R], *args: Any) -> asyncio.Future[R]:  # type: ignore[override]
        """Call the function immediately: virtual time would run on while a thread works."""
        future: asyncio.Future[R] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the edge of what would be a thread
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:
            self._jump()
        super()._run_once()  # type: ignore[misc]  # asyncio keeps it to itself

    def _jump(self) -> None:
        """Set the clock to the next timer that is not cancelled."""
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1
        if not timers:
            raise DeadlockError(f"after {self._now:,.1f} s nothing is left to wait for")
        self._now = max(self._now, timers[0]._when)
        if self._now > self._max_seconds:
            limit, self._max_seconds = self._max_seconds, self._now + MAX_CLEANUP_SECONDS
            raise TimeLimitError(f"not over after {limit:,.0f} s of virtual time")


class _NoSelector(selectors.BaseSelector):
    """Accepts the loop's own pipe; no file is ever ready."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def stand_still(seconds: float) -> None:
    """Stop the running loop for a while, then continue."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stand_still(seconds)


def run_in_virtual_time(main: Coroutine[Any, Any, R], *, max_seconds: float = math.inf) -> R:
    """The result of `main`; raises `DeadlockError` or `TimeLimitError` if it has none."""
    with (
        searching_less_often(),
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(max_seconds=max_seconds)) as runner,
    ):
        return runner.run(main)
