"""Stores structs as rows of an SQLite table: the fields are the columns and are declared nowhere else.

Numbers, texts and bytes are columns of their type, so they can be queried; everything else is msgpack. NaN is
stored as NULL, as SQLite requires. Every row has a checksum: SQLite checks the structure of its file, not the
contents of rows.
"""

import math
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_origin, get_type_hints

import msgspec

from freerun.types import decoder_for, encode

R = TypeVar("R", bound=msgspec.Struct)


class Column(NamedTuple):
    sql: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


class Table(Generic[R]):
    """Rows of one struct type, each with a version, which is a column even if it is not a field."""

    def __init__(self, name: str, row: type[R], *, key: tuple[str, ...]) -> None:
        self.name = name
        self._row = row
        self._key = key
        self._fields = {name: _column(hint) for name, hint in get_type_hints(row).items()}

    @property
    def create(self) -> str:
        """The statement that creates the table."""
        columns = {"version": _column(int)} | self._fields
        lines = [f"{name} {column.sql}" for name, column in columns.items()]
        lines.append("checksum INTEGER NOT NULL")
        if self._key == ("id",):  # ids are never reused, not even after a rewind: followers rely on it
            lines[lines.index("id INTEGER")] = "id INTEGER PRIMARY KEY AUTOINCREMENT"
        else:
            lines.append(f"PRIMARY KEY ({', '.join(self._key)})")
        return f"CREATE TABLE {self.name} ({', '.join(lines)})"

    def insert(self, db: sqlite3.Connection, rows: Iterable[R], *, version: int | None = None) -> None:
        """Add rows with their checksums."""
        written = [{"version": version} | self._write(row) for row in rows]
        if written:
            names = [*written[0], "checksum"]
            marks = ", ".join("?" * len(names))
            # By position: with named parameters, SQLite would look up each name in each row.
            values = [(*row.values(), checksum(row)) for row in written]
            db.executemany(f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({marks})", values)

    def _write(self, row: R) -> dict[str, Any]:
        return {name: column.write(getattr(row, name)) for name, column in self._fields.items()}

    def read(self, row: sqlite3.Row) -> R:
        return self._row(**{name: column.read(row[name]) for name, column in self._fields.items()})


def checksum(row: Mapping[str, Any]) -> int:
    """Checksum of a row, the same before writing and after reading.

    SQLite returns a whole number in a float column as a float, and NaN as None.
    """
    values = [row[name] for name in sorted(row) if name not in ("id", "checksum")]
    return zlib.crc32(encode([_as_read(value) for value in values]))


def valid_text(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot hold: one in a data file must not stop the writer."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _as_read(value: Any) -> Any:
    if isinstance(value, int | float):
        return None if math.isnan(value) else float(value)
    return value


def _column(hint: Any) -> Column:
    if hint is bool:
        return Column("INTEGER NOT NULL", int, bool)
    if hint is float:
        return Column("REAL", _same, lambda value: math.nan if value is None else value)
    if hint is str or get_origin(hint) is Literal:
        return Column("TEXT NOT NULL", valid_text, _same)
    simple = {int: "INTEGER NOT NULL", int | None: "INTEGER", bytes: "BLOB NOT NULL"}
    if hint in simple:
        return Column(simple[hint], _same, _same)
    return Column("BLOB NOT NULL", encode, decoder_for(hint).decode)


def _same(value: Any) -> Any:
    return value
