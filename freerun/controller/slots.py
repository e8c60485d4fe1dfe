"""How many more groups the engines could decode now.

    started ─► decoding ─► away (graded, or a tool works) ─► decoding ─► ... ─► finished

A sample holds a slot from its start to the end of its first call of `generate`, and during each later call. While
it is away its slot is free for another (invariant 5: generation continues while rewards are computed). The gate
still counts it, so it bounds how many can be away; for sessions, so do the seats of the agent workers.

A session whose first call is slow to come, because its environment starts slowly, is away too.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from freerun.protocols import Generator, VersionedGenerator
from freerun.types import Completion, Request

FIRST_CALL_SECONDS = 1.0
"""For a sample to make its first call; then its slot is free for another."""


class Slots:
    """Counts the samples that are away; `on_free` is called when one more is."""

    def __init__(
        self,
        generator: VersionedGenerator,
        *,
        num_slots: int,
        group_size: int,
        max_sessions: int | None = None,
        on_free: Callable[[], None],
    ) -> None:
        self.num_away = 0
        self._generator = generator
        self._num_slots = num_slots
        """Of one engine."""
        self._group_size = group_size
        self._max_groups = None if max_sessions is None else max(1, max_sessions // group_size)
        """Groups whose sessions the agent workers can run at once; None if there are no sessions."""
        self._on_free = on_free

    def num_free(self, num_running: int) -> int:
        """Groups that would be decoded immediately if they started now: queueing would only make them stale."""
        # At least one engine: a running group brings the controller back here when there are more.
        num_engines = max(1, self._generator.num_ready)
        num_at_once = math.ceil(num_engines * max(self._num_slots, self._group_size) / self._group_size)
        num_free = num_at_once - num_running + self.num_away // self._group_size
        return num_free if self._max_groups is None else min(num_free, self._max_groups - num_running)

    @contextmanager
    def of_group(self) -> Iterator[Generator]:
        """The generator for the workflow of one group that is running."""
        group = _GroupGenerator(self._generator, self._group_size, self._note)
        try:
            yield group
        finally:
            group.finish()

    def _note(self, change: int) -> None:
        self.num_away += change
        if change > 0:
            self._on_free()


class _GroupGenerator:
    """Implements `protocols.Generator`; says how many samples of its group are away."""

    def __init__(self, generator: Generator, group_size: int, note: Callable[[int], None]) -> None:
        self._generator = generator
        self._group_size = group_size
        self._note = note
        self._to_call = set(range(group_size))
        """Samples that are about to make their first call."""
        self._num_decoding = 0
        self._num_away = 0
        self._first_calls = asyncio.get_running_loop().call_later(FIRST_CALL_SECONDS, self._expect_no_more)

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        self._to_call.difference_update(range(request.sample, request.sample + request.num_samples))
        self._change_decoding(request.num_samples)
        try:
            return await self._generator.generate(request)
        finally:
            self._change_decoding(-request.num_samples)

    def end_session(self, session: int) -> None:
        self._generator.end_session(session)

    def finish(self) -> None:
        """The group has ended, so none of it is away."""
        # A workflow may end before its calls do: `asyncio.gather` raises the first error, the others continue.
        self._group_size = 0
        self._expect_no_more()

    def _expect_no_more(self) -> None:
        self._first_calls.cancel()
        self._to_call.clear()
        self._change_decoding(0)

    def _change_decoding(self, change: int) -> None:
        self._num_decoding += change
        before = self._num_away
        # More samples than the group has may be decoded: a session may ask for several replies at once.
        self._num_away = max(0, self._group_size - len(self._to_call) - self._num_decoding)
        if self._num_away != before:
            self._note(self._num_away - before)
