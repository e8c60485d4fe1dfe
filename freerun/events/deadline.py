"""A limit on the time that a thread spends on stores: a query that takes too long fails and frees the thread.

SQLite asks every few thousand of its instructions whether to continue (its progress handler), even in the
middle of a query that has returned no row for a long time. The limit belongs to a thread, so it holds for every
connection that the thread uses, including those opened before.
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
"""Instructions between two looks at the clock: about a millisecond."""


class _Limit(threading.local):
    at = math.inf


_limit = _Limit()


class TooSlowError(FreerunError):
    """A query to a store exceeded its time limit."""


@contextmanager
def reading_within(seconds: float) -> Iterator[None]:
    """Inside, this thread's queries to stores raise `TooSlowError` when time is up; the earlier limit counts."""
    before = _limit.at
    _limit.at = min(before, time.monotonic() + seconds)
    try:
        yield
    finally:
        _limit.at = before


def heed_deadline(connection: sqlite3.Connection) -> None:
    """Let the limit of its thread interrupt the queries of this connection."""
    connection.set_progress_handler(_is_over, NUM_INSTRUCTIONS)


def unreadable(file: object, error: Exception) -> FreerunError:
    """The error for a query that failed: out of time, or because of the state of the store."""
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
        return TooSlowError(f"reading {file} took too long; ask for less")
    return StoreError(f"store {file} cannot be read: {error}")


def _is_over() -> bool:
    return time.monotonic() > _limit.at
