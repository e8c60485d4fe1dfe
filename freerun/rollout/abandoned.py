"""Counts user code that was abandoned and still runs.

A thread cannot be killed, and a coroutine can ignore its cancellation. Code that hangs costs its session the
time-out and stays in the process. It is counted here so that the process can be replaced before too much of it
accumulates.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from freerun.errors import RolloutError

MAX_ABANDONED = 32
"""Number of abandoned calls in a process above which it starts no more threads for user code."""


class TooManyAbandonedError(RolloutError):
    """Too much user code hangs in this process; it must be replaced."""


class Abandoned:
    """Counts calls that were abandoned and have not ended."""

    def __init__(self) -> None:
        self.num_running = 0

    def add(self, running: asyncio.Future[Any]) -> None:
        """Count a call until it is done; its outcome is discarded."""
        self.num_running += 1
        running.add_done_callback(self._forget)

    def check(self) -> None:
        """Raise if too many abandoned calls still run in this process."""
        if self.num_running >= MAX_ABANDONED:
            raise TooManyAbandonedError(
                f"{self.num_running} tools, environments or episodes of this worker hang beyond their time-outs; "
                "make them end: a thread cannot be killed"
            )

    def _forget(self, ended: asyncio.Future[Any]) -> None:
        self.num_running -= 1
        if not ended.cancelled():
            ended.exception()  # retrieved, so that asyncio does not report it


class CallThread:
    """A thread that makes one call after another; objects bound to a thread always see the same thread.

    If a caller is interrupted, its call continues: the thread is abandoned and takes no more calls.
    """

    def __init__(self, name: str, abandoned: Abandoned) -> None:
        abandoned.check()
        self._abandoned = abandoned
        self.is_closed = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon thread: a call that hangs must not keep the process from exiting.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of the call, or raise its exception, including SystemExit and the like."""
        if self.is_closed:
            raise RuntimeError(
                "this thread takes no more calls: it was closed, or one of its calls was left running"
            )
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def work() -> None:
            try:
                outcome: tuple[Any, BaseException | None] = function(*args, **kwargs), None
            except BaseException as error:  # noqa: BLE001 - the edge of a thread, which runs user code
                outcome = None, error
            with contextlib.suppress(RuntimeError):  # the loop is closed because the process ends
                loop.call_soon_threadsafe(ended.set_result, outcome)

        self._calls.put(work)
        try:
            # Shielded: the future must report the end of the call even after its caller has left.
            result, error = await asyncio.shield(ended)
        finally:
            if not ended.done():
                self.close()
                self._abandoned.add(ended)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the thread after its last call."""
        self.is_closed = True
        self._calls.put(None)

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
