"""The store of a run: one SQLite file in the run directory, written only by the controller.

    controller ── store(event) ──► queue ──► writer thread ── commits ──► store.sqlite ──► readers

Recording puts the event in a queue and returns: it neither waits nor raises. Errors of the writer are kept and
raised by `check`, `flush` and `close`. A commit survives the death of the process; `flush` also survives a loss of
power, so it is called before a checkpoint that includes those steps. Reading is `freerun.events.reader`.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from freerun.events.events import AnyEvent, GroupFinished
from freerun.events.recording import delete_after, insert_event, insert_facts, trim_lost
from freerun.events.schema import (
    DAMAGE,
    PAGE_BYTES,
    Rewound,
    StoreError,
    check_schema,
    create_tables,
    is_alive,
    is_empty,
    process_created,
    store_file,
)

COMMIT_SECONDS = 0.25
MAX_EVENTS_PER_COMMIT = 512
DRAIN_SECONDS = 60.0
RELEASE_SECONDS = 1.0
"""How long the end of a run waits for readers to close the file; those that follow the run do so immediately."""


class _Mark:
    """Makes the writer commit and report back; the last mark also ends it."""

    def __init__(self, *, is_last: bool = False) -> None:
        self.is_last = is_last
        self.reached = threading.Event()


class Store:
    """A listener that records every event of a run; the module docstring has its guarantees."""

    def __init__(self, path: Path) -> None:
        self.file = store_file(path)
        _make_directory(self.file.parent)
        self._failure: Exception | None = None
        self._is_closed = False
        self._queue: queue.SimpleQueue[AnyEvent | _Mark] = queue.SimpleQueue()
        # The writer thread and `rewind` share the connection, one at a time.
        self._lock = threading.Lock()
        self._connection, self._session = _open(self.file)
        self._thread = threading.Thread(target=self._write_until_closed, name="store-writer", daemon=True)
        self._thread.start()

    def __call__(self, event: AnyEvent) -> None:
        """Record an event; never waits, never raises."""
        if self._failure is None and not self._is_closed:
            self._queue.put(event)

    record = __call__

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Raise the writer's error, if there is one."""
        if self._failure is not None:
            raise StoreError(f"store {self.file}: {_explain(self._failure)}") from self._failure

    def flush(self, timeout_seconds: float = 30.0) -> None:
        """Return when everything recorded so far is on disk."""
        if self._is_closed:
            raise StoreError(f"store {self.file} is closed")
        self._drain(_Mark(), timeout_seconds)
        self.check()
        with self._exclusive() as db:
            # Passive: it never waits for a reader, but with a reader it may do nothing, not even sync the log.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            with suppress(FileNotFoundError):  # a file system without logs: every commit is synced there
                _sync(self.file.with_name(f"{self.file.name}-wal"))

    def rewind(self, version: int, *, seconds: float = 0.0) -> int:
        """Delete every step after `version` and all events after `seconds`; returns the number of steps."""
        self.flush()
        with self._exclusive() as connection, _transaction(connection) as db:
            # Events without a version that came after the checkpoint will happen again too; starts and ends of
            # sessions are kept.
            num_steps = delete_after(db, version, seconds, kept=("run_started", "run_finished", "rewound"))
            if num_steps:
                insert_event(db, Rewound(seconds=seconds, version=version, num_steps=num_steps))
        return num_steps

    def close(self) -> None:
        """Write the remaining events, release the file, and raise the writer's error, if any."""
        if self._is_closed:
            return
        self._is_closed = True
        # A time-out means that the disk is stuck with the connection in use: there is nothing to release.
        self._drain(_Mark(is_last=True), DRAIN_SECONDS)
        with self._lock:
            _release(self._connection, self._session)
        self.check()

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        """Exclusive access to the connection; an SQLite error becomes the store's failure."""
        try:
            with self._lock:
                yield self._connection
        except (sqlite3.Error, OSError) as error:
            self._failure = error
            self.check()

    def _drain(self, mark: _Mark, timeout_seconds: float) -> None:
        self._queue.put(mark)
        if not mark.reached.wait(timeout_seconds):
            raise StoreError(
                f"store {self.file}: about {self._queue.qsize()} events are still not written after "
                f"{timeout_seconds:g} s; look at the disk"
            )

    def _write_until_closed(self) -> None:
        is_last = False
        while not is_last:
            events, mark = self._gather()
            try:
                if events and self._failure is None:
                    with self._lock:
                        self._commit(events)
            except Exception as error:  # noqa: BLE001 - the edge of the thread: kept for `check`
                self._failure = error
            if mark is not None:
                mark.reached.set()
                is_last = mark.is_last

    def _gather(self) -> tuple[list[AnyEvent], _Mark | None]:
        """Wait for an event, then collect those that arrive within the commit interval or up to a mark."""
        events: list[AnyEvent] = []
        item = self._queue.get()
        deadline = time.monotonic() + COMMIT_SECONDS
        while not isinstance(item, _Mark):
            events.append(item)
            remaining = deadline - time.monotonic()
            if remaining <= 0 or len(events) >= MAX_EVENTS_PER_COMMIT:
                return events, None
            try:
                item = self._queue.get(timeout=remaining)
            except queue.Empty:
                return events, None
        return events, item

    def _commit(self, events: list[AnyEvent]) -> None:
        with _transaction(self._connection) as db:
            for event in events:
                event_id = insert_event(db, event)
                insert_facts(db, event, event_id=event_id, session=self._session)
            if any(isinstance(event, GroupFinished) and event.prompt is not None for event in events):
                trim_lost(db)
            db.execute("UPDATE sessions SET updated = ? WHERE session = ?", (time.time(), self._session))


def _open(file: Path) -> tuple[sqlite3.Connection, int]:
    """Open or create the store and register this process as its only writer."""
    try:
        # Autocommit mode: we begin and end transactions ourselves. The lock in Store replaces the thread check.
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30.0)
    except sqlite3.Error as error:
        raise _cannot_open(file, error) from error
    try:
        if not is_empty(connection):
            check_schema(connection, file)  # before anything is changed in a file that may not be ours
        else:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        with _transaction(connection) as db:
            if is_empty(db):
                create_tables(db)
            return connection, _enter_session(db, file)
    except DAMAGE as error:
        connection.close()
        raise _cannot_open(file, error) from error
    except BaseException:
        connection.close()
        raise


def _sync(file: Path) -> None:
    """Flush a file to disk. SQLite has no locks on its log, which closing another descriptor would drop."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"store in {directory} cannot be made: {error.strerror or error}") from error


def _cannot_open(file: Path, error: Exception) -> StoreError:
    """The error with its reason and remedy."""
    remedies = {
        sqlite3.SQLITE_FULL: "free disk space",
        sqlite3.SQLITE_IOERR: "look at the disk, free space on it",
        sqlite3.SQLITE_CANTOPEN: "make it a file that can be read and written",
        sqlite3.SQLITE_READONLY: "make it and its directory writable",
        sqlite3.SQLITE_BUSY: "end the program that holds it",
    }
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    remedy = remedies.get(code, "put a whole copy of it in its place, or start a run under another name")
    return StoreError(f"store {file} cannot be opened: {error}; {remedy}")


def _enter_session(db: sqlite3.Connection, file: Path) -> int:
    """Add the session row of this process; raises if another live process writes the store."""
    for pid, created in db.execute("SELECT pid, pid_created FROM sessions WHERE state = 'running'"):
        if pid != os.getpid() and is_alive(pid, created):
            raise StoreError(
                f"store {file} is being written by process {pid}; stop that run, or choose another run.name"
            )
    db.execute("UPDATE sessions SET state = 'failed', reason = 'crashed' WHERE state = 'running'")
    cursor = db.execute(
        "INSERT INTO sessions (state, pid, pid_created, updated) VALUES ('running', ?, ?, ?)",
        (os.getpid(), process_created(os.getpid()), time.time()),
    )
    return int(cursor.lastrowid or 0)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite rolls back by itself, and nothing is left to undo.
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _explain(failure: Exception) -> str:
    if isinstance(failure, sqlite3.IntegrityError):
        return f"a step or trajectory was trained twice ({failure}); rewind the store when resuming"
    if isinstance(failure, sqlite3.OperationalError | OSError):
        return f"events are no longer written: {failure}; free disk space, then resume the run"
    return f"an event could not be recorded: {type(failure).__name__}: {failure}"


def _release(connection: sqlite3.Connection, session: int) -> None:
    """Close the file; a finished store is one file without a write-ahead log, readable from anywhere."""
    with suppress(sqlite3.Error):
        connection.execute(
            "UPDATE sessions SET state = 'failed', reason = 'ended without saying why' "
            "WHERE session = ? AND state = 'running'",
            (session,),
        )
    deadline = time.monotonic() + RELEASE_SECONDS
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout = 0")
    while not _has_left_log(connection) and time.monotonic() < deadline:
        time.sleep(0.02)
    connection.close()


def _has_left_log(connection: sqlite3.Connection) -> bool:
    """Whether the file has left write-ahead logging; a reader that has it open may prevent that."""
    try:
        return bool(connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete")
    except sqlite3.OperationalError:  # locked
        return False
    except sqlite3.Error:
        return True  # damaged: waiting changes nothing
