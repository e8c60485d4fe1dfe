"""Tasks that run beside a loop, and whose failure must not go unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


class Background:
    """Runs coroutines beside whoever owns it; `watch` raises their failures at once."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    async def watch(self, work: Awaitable[R]) -> R:
        """Wait for `work`, or raise what a background task raised in the meantime."""
        task: asyncio.Future[R] = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._failure}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            elif not task.cancelled():
                task.exception()  # seen: when both fail in one turn, asyncio complains about the other at exit

    async def cancel(self) -> None:
        """End all tasks; returns when they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure.done():
            self._failure.exception()  # seen, or asyncio complains about it at exit

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)
