"""The clock of a session: how long its episode, tools and environment may take.

It stops while the policy samples or a grader works: their time depends on the machine and on other sessions,
and must not affect the session's reward.
"""

import asyncio
import contextlib
from collections.abc import Iterator


class SessionClock:
    """Counts down from `seconds` while a task is in `wait`, except when it is stopped."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left_seconds = seconds
        self.is_over = False
        self._num_stops = 1  # until it starts
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._has_rung = asyncio.Event()

    async def wait(self) -> None:
        """Run the clock; return when the time is over."""
        self._run()
        try:
            await self._has_rung.wait()
        finally:
            self._stop()

    def extend(self, seconds: float) -> None:
        """Give a session that is out of time a little more to finish; `is_over` stays true."""
        self._left_seconds = seconds
        self._has_rung.clear()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock inside this context; contexts may overlap."""
        self._stop()
        try:
            yield
        finally:
            self._run()

    def _stop(self) -> None:
        self._num_stops += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left_seconds -= asyncio.get_running_loop().time() - self._since

    def _run(self) -> None:
        self._num_stops -= 1
        if not self._num_stops:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._timer = loop.call_later(max(0.0, self._left_seconds), self._ring)

    def _ring(self) -> None:
        self.is_over = True
        self._has_rung.set()
