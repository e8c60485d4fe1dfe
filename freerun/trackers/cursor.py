"""How far a run has been reported to a tracker: a small file in the run directory, locked by one process.

It cannot be known whether a killed reporter had sent an event. So the file records an orderly close; without
it, the next reporter begins a new attempt.
"""

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from freerun.errors import FreerunError

FOLDER = "reports"


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """What a tracker has received."""

    key: str
    """Key of this attempt."""
    attempt: int
    is_closed: bool = False
    """Whether its reporter closed in order, so that the rest of the cursor is reliable."""
    last_id: int = 0
    """The last event it received."""
    last_step: int = 0
    last_sft_step: int | None = None


def new_attempt(before: Cursor | None) -> Cursor:
    return Cursor(key=secrets.token_hex(6), attempt=before.attempt + 1 if before else 1)


def cursor_file(directory: Path, tracker: str) -> Path:
    return directory / FOLDER / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', tracker)}.json"


def read_cursor(file: Path) -> Cursor | None:
    """The cursor; None if nothing was reported. An unreadable file counts as an attempt that was not closed."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Cursor)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        return Cursor(key="", attempt=1)


def write_cursor(file: Path, cursor: Cursor) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(cursor))
    os.replace(new, file)


@contextlib.contextmanager
def held(file: Path, tracker: str) -> Iterator[None]:
    """Lock the file; raises if another process reports the same run to the same tracker."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FreerunError(
                f"another process reports {file.parent.parent} to {tracker}; wait until it ends, or stop it"
            ) from error
        yield
