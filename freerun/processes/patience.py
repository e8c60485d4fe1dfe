"""Awake time: the seconds in which this process was able to hear its workers. Worker silence is measured in it.

A controller that is stopped (Ctrl-Z, a suspended machine) or too busy to read hears nothing. When it continues,
due timers fire before the first message is read: by the event loop's clock every worker has been silent, but by
this clock no time has passed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

TICK_SECONDS = 1.0
MAX_TICK_SECONDS = 3.0
"""A longer tick does not count: the process was not able to listen."""
R = TypeVar("R")


class AwakeClock:
    """The clock of one event loop; it ticks by itself until the loop is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awake = 0.0
        self._last_tick = loop.time()
        loop.call_later(TICK_SECONDS, self._tick)

    def time(self) -> float:
        """Awake seconds so far; time since the last tick counts only if it is short enough."""
        since = self._loop.time() - self._last_tick
        return self._awake + (since if since <= MAX_TICK_SECONDS else 0.0)

    def _tick(self) -> None:
        self._awake = self.time()
        self._last_tick = self._loop.time()
        self._loop.call_later(TICK_SECONDS, self._tick)


_CLOCKS: dict[asyncio.AbstractEventLoop, AwakeClock] = {}


def awake_clock() -> AwakeClock:
    loop = asyncio.get_running_loop()
    if loop not in _CLOCKS:
        for closed in [other for other in _CLOCKS if other.is_closed()]:
            del _CLOCKS[closed]
        _CLOCKS[loop] = AwakeClock(loop)
    return _CLOCKS[loop]


async def within(seconds: float, wait: Callable[[], Awaitable[R]]) -> R:
    """Return the result of `wait()`; raises `TimeoutError` after `seconds` awake seconds.

    If the process slept meanwhile, `wait` is cancelled and called again, so cancelling it must lose nothing.
    """
    clock = awake_clock()
    deadline = clock.time() + seconds
    while True:
        try:
            async with asyncio.timeout(deadline - clock.time()) as timeout:
                return await wait()
        except TimeoutError:
            if not timeout.expired() or clock.time() >= deadline:
                raise
