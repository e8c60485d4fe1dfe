"""Tells a page when to update: server-sent events at `/stream`.

    store ──► follower ──► subscribers      polled every 0.2 s, only while there are subscribers

An event is small: it names the kinds of new events. The page gets their contents from the feeds.

    id: 1234
    data: {"id": 1234, "kinds": {"step_finished": 1, "group_finished": 4}}

The id is that of the newest event in the store. A browser that reconnects sends it as `Last-Event-ID` and is
told at once what it missed. The first message of a stream gives the current id, with no kinds.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from freerun.events.follow import Follower
from freerun.events.reader import RunReader
from freerun.events.schema import StoreError

T = TypeVar("T")
GLANCE_SECONDS = 0.2
PING_SECONDS = 15.0
"""Interval of comments, which tell both ends that the other is there."""
_PING = b": still here\n\n"


class Changes(msgspec.Struct, frozen=True):
    """The number of new events of each kind, up to the event `id`."""

    id: int
    kinds: dict[str, int]
    error: str = ""
    """Why the store cannot be read."""


OpenFollower = Callable[[Path, int], Follower]


class Watch:
    """Follows one run's store while it has subscribers."""

    def __init__(self, run: Path, store_thread: Executor, open_follower: OpenFollower) -> None:
        self._run = run
        self._thread = store_thread
        self._open_follower = open_follower
        self._subscribers: set[asyncio.Queue[Changes]] = set()
        self._polling: asyncio.Task[None] | None = None

    @property
    def is_polling(self) -> bool:
        return self._polling is not None

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    async def changes(self, after: int | None) -> AsyncGenerator[Changes | None, None]:
        """Yield changes from now on, or after an event; None from time to time if there are none."""
        first = await self._in_thread(lambda: _changes_since(self._run, after))
        queue: asyncio.Queue[Changes] = asyncio.Queue()
        self._subscribers.add(queue)
        try:
            if self._polling is None:
                self._polling = asyncio.create_task(self._poll(first.id))
            yield first
            last = first.id
            while True:
                try:
                    found = await asyncio.wait_for(queue.get(), PING_SECONDS)
                except TimeoutError:
                    yield None
                    continue
                if found.id > last or found.error:
                    last = max(last, found.id)
                    yield found
        finally:
            self._subscribers.discard(queue)
            if not self._subscribers and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self, after: int) -> None:
        follower = self._open_follower(self._run, after)
        error = ""
        try:
            while True:
                try:
                    events, now_wrong = await self._in_thread(follower.poll), ""
                except StoreError as wrong:
                    events, now_wrong = [], str(wrong)
                if events:
                    kinds = Counter(str(event.__struct_config__.tag) for _, event in events)
                    self._tell(Changes(events[-1][0], dict(kinds)))
                elif now_wrong != error:
                    self._tell(Changes(follower.last_id, {}, now_wrong))
                error = now_wrong
                await asyncio.sleep(GLANCE_SECONDS)
        finally:
            self._thread.submit(follower.close)

    def _tell(self, changes: Changes) -> None:
        for queue in self._subscribers:
            queue.put_nowait(changes)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def as_event(changes: Changes | None) -> bytes:
    """A message of the stream."""
    if changes is None:
        return _PING
    return b"id: %d\ndata: %s\n\n" % (changes.id, msgspec.json.encode(changes))


def last_event_id(header: str | None) -> int | None:
    """The id that a browser sends when it reconnects; None on the first request, or if it is invalid."""
    text = (header or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _changes_since(run: Path, after: int | None) -> Changes:
    try:
        with closing(RunReader(run)) as reader:
            kinds = Counter(reader.event_kinds(after)) if after is not None else Counter()
            return Changes(reader.last_event_id(), dict(kinds))
    except StoreError:  # not there yet: the follower reports it if it stays that way
        return Changes(0, {})
