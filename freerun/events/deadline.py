"""A time limit for a thread's reads of stores: a query that takes too long fails and frees the thread.

SQLite calls its progress handler every few thousand instructions, even in the middle of a query that has not
returned a row for a long time. The limit belongs to a thread, so it holds for every connection that the thread
uses, including connections opened before.
"""

import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from freerun.errors import FreerunError
from freerun.events.schema import StoreError

NUM_INSTRUCTIONS = 5000
"""Instructions between two checks of the clock: about a millisecond."""


class _Limit(threading.local):
    at = math.inf


_limit = _Limit()


class TooSlowError(FreerunError):
    """A query to a store exceeded its time limit."""


@contextmanager
def reading_within(seconds: float) -> Iterator[None]:
    """Inside, this thread's queries raise `TooSlowError` when time is up; of nested limits the earliest counts."""
    before = _limit.at
    _limit.at = min(before, time.monotonic() + seconds)
    try:
        yield
    finally:
        _limit.at = before


def heed_deadline(connection: sqlite3.Connection) -> None:
    """Make this connection's queries obey the time limit of their thread."""
    connection.set_progress_handler(_is_over, NUM_INSTRUCTIONS)


def unreadable(file: object, error: Exception) -> FreerunError:
    """The error for a failed query: out of time, or a damaged or unreadable store."""
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
        return TooSlowError(f"reading {file} took too long; ask for less")
    return StoreError(f"store {file} cannot be read: {error}")


def _is_over() -> bool:
    return time.monotonic() > _limit.at
