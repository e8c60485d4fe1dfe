"""Calls in flight: each is a separate task, so it outlives the client that made it.

A client that gives up and retries (an SDK after its time-out) joins the call through its session
(`ChatCall.is_retry`). If a client disconnects, its call is still committed once, like any other.
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
    """Starts calls, and ends the remaining ones."""

    def __init__(self, *, call_seconds: float) -> None:
        self._call_seconds = call_seconds
        self._tasks: set[asyncio.Task[Replies]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, replies: Coroutine[Any, Any, Replies]) -> asyncio.Task[Replies]:
        """Start a call; the task raises only `RefusedError` and, if it is cancelled, `CancelledError`."""
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
            task.exception()  # Otherwise asyncio reports the error as lost if the client is gone.

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
        """Cancel the remaining calls, wait for them, and start no more."""
        self._is_closed = True
        left = [*self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def outcome(task: asyncio.Task[Replies]) -> Replies:
    """The replies of a call; cancelling the caller does not cancel the call."""
    await asyncio.wait({task})
    if task.cancelled():
        raise RefusedError(
            "the call was given up: its session or the gateway has ended", status=503, code="unavailable"
        )
    return task.result()


def place_of(error: BaseException) -> str:
    """The type of an error and where it happened, without its message, which may quote a body."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {places}"
