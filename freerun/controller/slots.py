"""How many more groups the engines could decode now.

    started ─► decoding ─► away (graded, or a tool works) ─► decoding ─► ... ─► finished

A group holds slots from its start to the end of its first call of `generate`, and during each later call. While it
is away its slots are free for another group (invariant 5: generation continues while rewards are computed). The
gate still counts it, so it bounds how many can be away.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from freerun.protocols import Generator, VersionedGenerator
from freerun.types import Completion, Request


class Slots:
    """Counts the groups that are away; `on_free` is called when one more is."""

    def __init__(
        self,
        generator: VersionedGenerator,
        *,
        num_slots: int,
        group_size: int,
        on_free: Callable[[], None],
    ) -> None:
        self.num_away = 0
        self._generator = generator
        self._num_slots = num_slots
        """Of one engine."""
        self._group_size = group_size
        self._on_free = on_free

    def num_free(self, num_running: int) -> int:
        """Groups that would be decoded immediately if they started now: queueing would only make them stale."""
        # At least one engine: a running group brings the controller back here when there are more.
        num_engines = max(1, self._generator.num_ready)
        num_at_once = math.ceil(num_engines * max(self._num_slots, self._group_size) / self._group_size)
        return num_at_once - (num_running - self.num_away)

    @contextmanager
    def of_group(self) -> Iterator[Generator]:
        """The generator for the workflow of one group that is running."""
        group = _GroupGenerator(self._generator, self._note)
        try:
            yield group
        finally:
            group.finish()

    def _note(self, change: int) -> None:
        self.num_away += change
        if change > 0:
            self._on_free()


class _GroupGenerator:
    """Implements `protocols.Generator`; says when its group is away and when it is back."""

    def __init__(self, generator: Generator, note: Callable[[int], None]) -> None:
        self._generator = generator
        self._note = note
        self._num_calls = 0
        self._is_away = False
        self._is_finished = False

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        self._num_calls += 1
        if self._is_away:
            self._set_away(False)
        try:
            return await self._generator.generate(request)
        finally:
            self._num_calls -= 1
            # A workflow may end before its calls do: `asyncio.gather` raises the first error, the others continue.
            if not self._num_calls and not self._is_finished:
                self._set_away(True)

    def finish(self) -> None:
        """The group has ended, so it is no longer away."""
        self._is_finished = True
        if self._is_away:
            self._set_away(False)

    def _set_away(self, is_away: bool) -> None:
        self._is_away = is_away
        self._note(1 if is_away else -1)
