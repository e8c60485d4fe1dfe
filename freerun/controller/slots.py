"""How many more groups the engines could decode now, and how full they have been.

    started ─► decoding ─► away (being graded, or running a tool) ─► decoding ─► ... ─► finished

Slots hold samples, not groups: a group starts as soon as one of its samples finds a free slot. So the engines'
queue is shorter than one group, and no slot waits for the group's other samples.

A sample holds a slot from its start to the end of its first call of `generate`, and during each later call. While
it is away, its slot is free for another sample (invariant 5: generation continues while rewards are computed). The
gate still counts the sample, which bounds how many can be away. For sessions, so do the agent workers' seats.

A session whose environment starts slowly, so that its first call is late, also counts as away.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from freerun.controller.occupancy import Occupancy
from freerun.protocols import Generator, VersionedGenerator
from freerun.types import Completion, EngineStats, Request

FIRST_CALL_SECONDS = 1.0
"""How long a sample may take to make its first call before its slot counts as free."""


class Slots:
    """Counts the samples that are being decoded and those away; `on_free` is called when one more is away."""

    def __init__(
        self,
        generator: VersionedGenerator,
        *,
        num_slots: int,
        group_size: int,
        max_sessions: int | None = None,
        on_free: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.num_away = 0
        self.occupancy = Occupancy(clock)
        self._num_decoding = 0
        self._generator = generator
        self._num_slots = num_slots
        """Slots per engine."""
        self._group_size = group_size
        self._max_groups = None if max_sessions is None else max(1, max_sessions // group_size)
        """Groups whose sessions the agent workers can run at once; None if there are no sessions."""
        self._on_free = on_free

    def num_free(self, num_running: int) -> int:
        """Groups that would get a slot for at least one sample if they started now."""
        num_with_slot = num_running * self._group_size - self.num_away
        num_places = self._num_engine_slots()
        if num_places > num_with_slot:  # rarely: only then does the room in the caches matter
            num_places = self._num_places()
        num_free = -(-(num_places - num_with_slot) // self._group_size)
        return num_free if self._max_groups is None else min(num_free, self._max_groups - num_running)

    def _num_places(self) -> int:
        """Samples that all engines can decode at once, limited by slots and by room in the caches."""
        return max(1, self._num_engine_slots() - sum(map(_num_without_cache, self._generator.stats())))

    def _num_engine_slots(self) -> int:
        # Count at least one engine: when more become ready, a running group calls the controller back here.
        return max(1, self._generator.num_ready) * self._num_slots + self._generator.num_leaving

    @contextmanager
    def of_group(self) -> Iterator[Generator]:
        """The generator for the workflow of one running group."""
        group = _GroupGenerator(self._generator, self._group_size, self._note_away, self._note_decoding)
        try:
            yield group
        finally:
            group.finish()

    def _note_away(self, change: int) -> None:
        self.num_away += change
        if change > 0:
            self._on_free()

    def _note_decoding(self, change: int) -> None:
        self._num_decoding += change
        self.occupancy.note(self._num_decoding, max(1, self._generator.num_ready) * self._num_slots)


class _GroupGenerator:
    """Implements `protocols.Generator`; reports how many samples of its group are being decoded and are away."""

    def __init__(
        self,
        generator: Generator,
        group_size: int,
        note_away: Callable[[int], None],
        note_decoding: Callable[[int], None],
    ) -> None:
        self._generator = generator
        self._group_size = group_size
        self._note_away = note_away
        self._note_decoding = note_decoding
        self._to_call = set(range(group_size))
        """Samples that have not made their first call, and are expected to make it soon."""
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
        """Note the end of the group: none of its samples is away any more."""
        # A workflow may end before its calls: `asyncio.gather` raises the first error while the others continue.
        self._group_size = 0
        self._expect_no_more()

    def _expect_no_more(self) -> None:
        self._first_calls.cancel()
        self._to_call.clear()
        self._change_decoding(0)

    def _change_decoding(self, change: int) -> None:
        if change:
            self._num_decoding += change
            self._note_decoding(change)
        before = self._num_away
        # More requests than the group has samples may be decoding: a session may ask for several replies at once.
        self._num_away = max(0, self._group_size - len(self._to_call) - self._num_decoding)
        if self._num_away != before:
            self._note_away(self._num_away - before)


def _num_without_cache(stats: EngineStats) -> int:
    """Slots that do not fit into the cache, by the mean length of what it holds; 0 while it is half empty."""
    if 2 * stats.cache_tokens_used <= stats.cache_tokens:
        return 0
    num_fitting = max(1, stats.num_running * stats.cache_tokens // stats.cache_tokens_used)
    return max(0, stats.num_slots - num_fitting)
