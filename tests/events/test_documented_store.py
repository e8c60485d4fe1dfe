"""docs/metrics.md has every table, column and kind of event of the store, and none that does not exist."""

import sqlite3
from typing import get_args

from documented_store import documented_columns, documented_kinds

from freerun.events.events import AnyEvent
from freerun.events.schema import Rewound, create_tables


def columns() -> dict[str, set[str]]:
    """Of a new store, without the checksum that every row has."""
    db = sqlite3.connect(":memory:")
    create_tables(db)
    names = [name for [name] in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {name: {row[1] for row in db.execute(f"PRAGMA table_info({name})")} - {"checksum"} for name in names}
    db.close()
    return {name: of for name, of in found.items() if not name.startswith("sqlite_")}


def test_every_column_is_documented_once_and_none_that_is_not_there() -> None:
    documented = documented_columns()
    assert {table: sorted(names) for table, names in documented.items()} == {
        table: sorted(names) for table, names in columns().items()
    }


def test_every_kind_of_event_is_documented() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in (*get_args(AnyEvent), Rewound)}
    assert documented_kinds() == tags
