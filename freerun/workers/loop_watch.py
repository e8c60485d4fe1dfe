"""Detects code that blocks the event loop of an agent worker, and the session it belongs to.

While an episode computes or blocks without awaiting, no other session of its process continues. A thread pings the
loop; if there is no answer for a second, the task running at that moment is to blame. Tasks started by an episode
belong to its session because they inherit its context.
"""

import asyncio
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any

HELD_SECONDS = 1.0
_session: contextvars.ContextVar[int | None] = contextvars.ContextVar("session", default=None)


def context_of_session(number: int) -> contextvars.Context:
    """A context that marks tasks as belonging to this session."""
    context = contextvars.copy_context()
    context.run(_session.set, number)
    return context


class LoopWatch:
    """Calls `report` about once a second while the loop is blocked, with the session's number if it is known."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[int | None], None]) -> None:
        self._loop = loop
        self._report = report
        self._session_of: weakref.WeakKeyDictionary[asyncio.Future[Any], int] = weakref.WeakKeyDictionary()
        loop.set_task_factory(self._make_task)
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        number = _session.get() if context is None else context.get(_session)
        if number is not None:
            self._session_of[task] = number
        return task

    def _watch(self) -> None:
        while True:
            is_alive = threading.Event()
            try:
                self._loop.call_soon_threadsafe(is_alive.set)
            except RuntimeError:  # the loop is closed
                return
            while not is_alive.wait(HELD_SECONDS):
                self._report(self._holder())
            time.sleep(HELD_SECONDS)

    def _holder(self) -> int | None:
        task = asyncio.current_task(self._loop)
        return None if task is None else self._session_of.get(task)
