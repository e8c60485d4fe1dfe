"""Calls in flight: each is a separate task, so it outlives the client that asked.

A client that gives up and asks again (an SDK after its time-out) joins the call through its session
(`ChatCall.is_retry`); one that is gone leaves a call that is committed once, like any other.
"""

import asyncio
import logging
import traceback
from collections.abc import Coroutine
from typing import Any

from freerun.chat.messages import Reply
from freerun.errors import ChatError
from freerun.gateway.refusals import RefusedError, refusal_of

_log = logging.getLogger(__name__)

Replies = tuple[Reply, ...]


class CallsInFlight:
    """Starts calls, and ends those that are left."""

    def __init__(self, *, call_seconds: float) -> None:
        self._call_seconds = call_seconds
        self._tasks: set[asyncio.Task[Replies]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, replies: Coroutine[Any, Any, Replies]) -> asyncio.Task[Replies]:
        """The task raises nothing but `RefusedError` and, if it is cancelled, `CancelledError`."""
        if self._is_closed:
            replies.close()
            raise RefusedError("the gateway is closing", status=503, code="unavailable")
        task = asyncio.create_task(self._run(replies))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Replies]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # The client may be gone: without this, asyncio would report the error as lost.

    async def _run(self, replies: Coroutine[Any, Any, Replies]) -> Replies:
        try:
            async with asyncio.timeout(self._call_seconds):
                return await replies
        except ChatError as error:
            raise refusal_of(error) from error
        except TimeoutError as error:
            raise RefusedError(
                f"the policy did not answer within {self._call_seconds:g} s", status=504, code="timeout"
            ) from error
        except Exception as error:
            _log.error("a call failed: %s", place_of(error))
            raise RefusedError(
                f"the call failed ({type(error).__name__}); the log of the gateway says where",
                status=500,
                code="internal_error",
            ) from error

    async def close(self) -> None:
        """Cancel what is left, wait for it, and start nothing more."""
        self._is_closed = True
        left = [*self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def outcome(task: asyncio.Task[Replies]) -> Replies:
    """The replies of a call; the caller may be cancelled, the call is not."""
    await asyncio.wait({task})
    if task.cancelled():
        raise RefusedError(
            "the call was given up: its session or the gateway has ended", status=503, code="unavailable"
        )
    return task.result()


def place_of(error: BaseException) -> str:
    """The kind of an error and where it happened, without its message: that may quote a body."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {places}"
