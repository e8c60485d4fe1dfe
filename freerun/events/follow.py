"""Follows a run's store: returns everything that has happened since the last poll, in order.

A page, a tracker or a terminal elsewhere polls repeatedly. Polling a store that has not changed costs one
SQLite query. The file is closed as soon as the run has ended, so that its writer can leave a single file
(`store.py`), and opened again when it changes: a run may be resumed.

Ids only grow, also across a rewind. A `Rewound` event says that the steps after its version, and the events that
followed them, did not happen: a reader that accumulates state rebuilds it from the first event.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from freerun.events.events import AnyEvent, RunFinished
from freerun.events.reader import RunReader
from freerun.events.schema import DAMAGE, Rewound, is_empty, store_file

RUN_FINISHED = "run_finished"


class Follower:
    """The events of one store after those already returned; not to be shared between threads."""

    def __init__(self, path: str | Path, *, after: int = 0) -> None:
        self.file = store_file(Path(path))
        self.last_id = after
        self._reader: RunReader | None = None
        self._seen: int | tuple[tuple[int, int], ...] | None = None
        """The store at the last poll: SQLite's data version, or the files' times and sizes if it is closed."""

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def poll(self) -> list[tuple[int, AnyEvent | Rewound]]:
        """New events with their ids; none while there is no store. Raises `StoreError` for an unreadable one."""
        if self._reader is None and not self._open():
            return []
        assert self._reader is not None
        version = self._reader.data_version()
        if version == self._seen:
            return []
        # Read after the data version: what is committed in between is found again by the next poll, and skipped.
        events = list(self._reader.numbered_events(after=self.last_id))
        self._seen = version
        if events:
            self.last_id = events[-1][0]
        if isinstance(events[-1][1], RunFinished) if events else self._reader.last_kind() == RUN_FINISHED:
            self._release_file()
        return events

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> bool:
        """Open the store if there is one that has changed since it was closed."""
        files = self._look_at_files()
        if not files or files == self._seen or not has_tables(self.file):
            return False
        self._reader, self._seen = RunReader(self.file), None
        return True

    def _release_file(self) -> None:
        self.close()
        self._seen = self._look_at_files()

    def _look_at_files(self) -> tuple[tuple[int, int], ...]:
        """Time and size of the store and its log, if they exist."""
        files = (self.file, self.file.with_name(f"{self.file.name}-wal"))
        stats = [file.stat() for file in files if file.exists()]
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)


def has_tables(file: Path) -> bool:
    """Whether the store exists and its writer has done more than create the file."""
    if not file.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)) as db:
            return not is_empty(db)
    except DAMAGE:
        return True  # the reader raises the right error
