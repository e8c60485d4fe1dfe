"""Copies a run's store as it was at an earlier version, as the start of another run.

The original run may still be writing; its file is only read.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from freerun.events.recording import delete_after
from freerun.events.schema import DAMAGE, StoreError, check_schema, store_file


def copy_store(run: Path, directory: Path, *, version: int, seconds: float) -> None:
    """Copy without the steps after `version`, the events after `seconds` and the sessions that began later."""
    source, target = store_file(run), store_file(directory)
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro", uri=True)) as recorded,
            closing(sqlite3.connect(target, isolation_level=None)) as db,
        ):
            check_schema(recorded, source)
            recorded.backup(db)
            db.execute("BEGIN IMMEDIATE")
            delete_after(db, version, seconds)
            db.execute("DELETE FROM sessions WHERE start_version >= ?", (version,))
            # No process writes the copy, even if one writes the original.
            db.execute("UPDATE sessions SET state = 'interrupted', reason = '' WHERE state = 'running'")
            db.execute("COMMIT")
    except DAMAGE as error:
        raise StoreError(f"store {source} cannot be copied to {target}: {error}") from error
