"""User code that was abandoned and still runs.

A thread cannot be killed, and a coroutine can ignore its cancellation. What hangs costs the session its time-out,
but stays in the process. This counts such code, so the process can be replaced before too much of it piles up.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from freerun.errors import RolloutError

MAX_ABANDONED = 32
"""Abandoned calls in one process, above which it starts no more threads for user code."""


class TooManyAbandonedError(RolloutError):
    """Too much user code hangs in this process; it must be replaced."""


class Abandoned:
    """Counts what was abandoned and has not ended yet."""

    def __init__(self) -> None:
        self.num_running = 0

    def add(self, running: asyncio.Future[Any]) -> None:
        """Count it until it is done; its outcome is discarded."""
        self.num_running += 1
        running.add_done_callback(self._forget)

    def check(self) -> None:
        """Raise if this process holds too much of it."""
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
    """A thread that makes one call after another; objects bound to a thread always see the same one.

    A caller that is interrupted leaves its call running: the thread is abandoned, and takes no more calls.
    """

    def __init__(self, name: str, abandoned: Abandoned) -> None:
        abandoned.check()
        self._abandoned = abandoned
        self.is_closed = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a call that hangs must not keep the process from exiting.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of the call, or what it raises, SystemExit and the like included."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(ended.set_result, outcome)

        self._calls.put(work)
        try:
            # Shielded: the future tells when the call has ended, even after its caller has left.
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
