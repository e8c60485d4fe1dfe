"""Lockstep: all sessions take their turns together, which makes synchronous runs bitwise repeatable.

What an engine batches together changes the last bits of its logits, and which calls of sessions share a batch
depends on how long episodes and messages take. In lockstep a call waits until every running session has one; then
all are made at once, in the order of the sessions. A synchronous run does the same with whole groups
(`RolloutPool`). With turns it costs as much as a plain loop over turns: each takes as long as its longest reply.
"""

import asyncio


class Lockstep:
    """Holds back calls until every running session has one."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}
        """Waiting calls by (session, call)."""

    def begin(self, number: int) -> None:
        """Note that a session runs: the others now wait for its calls."""
        self._running.add(number)

    def end(self, number: int) -> None:
        """Note that the session makes no more calls."""
        self._running.discard(number)
        self._release_soon()

    async def wait(self, number: int, call: int) -> None:
        """Wait until this call of a running session may be made."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[number, call] = turn
        self._release_soon()
        try:
            await turn
        finally:
            self._waiting.pop((number, call), None)

    def _release_soon(self) -> None:
        # Not immediately: otherwise the last caller would not wait at all and would get ahead of the others.
        asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        if self._running == {number for number, _ in self._waiting}:
            for _, turn in sorted(self._waiting.items()):
                if not turn.done():
                    turn.set_result(None)
            self._waiting.clear()
