"""Reads rows of a file, in the format of its suffix.

    .jsonl      one JSON object per line      key  train.jsonl:17    (line number)
    .json       an array of JSON objects      key  train.json:17     (index, from 1)
    .parquet    columns, read with pyarrow    key  train.parquet:17

An unreadable row is passed on with the reason and reported together with unusable rows. Numbers in JSON keep their
spelling; an object that repeats a key is unreadable.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.data import DataConfig
from freerun.data.rows import Number, Row, RowError, kind_of, to_prompts
from freerun.data.settings import require_extra
from freerun.data.task_prompt import TaskPrompt
from freerun.errors import DataError

Rows = Iterator[tuple[str, Row | RowError]]

_NOT_JSON = (msgspec.DecodeError, ValueError, RecursionError)
"""RecursionError means brackets nested a thousand deep."""


def read(path: Path, config: DataConfig) -> tuple[TaskPrompt, ...]:
    prompts = to_prompts(rows_of(path), config)
    if not prompts:
        raise DataError(f"{path}: the file has no rows; each must be one JSON object, or one row of a table")
    return prompts


def rows_of(path: Path) -> Rows:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise DataError(f"{path}: unknown kind of file; name one that ends in {', '.join(_READERS)}")
    return reader(path)


def _json_lines(path: Path) -> Rows:
    # Bytes, because text would also be split at U+2028 and other characters that JSON allows within strings.
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if line.strip():
            yield f"{path.name}:{number}", _parse(line)


def _json_array(path: Path) -> Rows:
    try:
        rows = _decode(_content(path))
    except _NOT_JSON as error:
        raise DataError(f"{path}: not JSON ({error}); a file of one object a line ends in .jsonl") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: {kind_of(rows)}, not an array of objects")
    for number, row in enumerate(rows, start=1):
        yield f"{path.name}:{number}", _as_row(row, "each element must be one")


def _parquet(path: Path) -> Rows:
    parquet = require_extra("pyarrow.parquet", needed_for=f"{path}")
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            table, num_rows = file.read(), file.metadata.num_rows
        table.validate(full=True)
        rows = table.to_pylist()
    # A damaged file raises Arrow's errors, OSError, UnicodeDecodeError, MemoryError and others; no common base.
    except Exception as error:
        raise DataError(f"{path}: cannot be read as Parquet ({type(error).__name__}: {error})") from error
    if len(rows) != num_rows:
        raise DataError(f"{path}: damaged: it declares {num_rows} rows, and {len(rows)} can be read")
    for number, row in enumerate(rows, start=1):
        yield f"{path.name}:{number}", row


_READERS: dict[str, Callable[[Path], Rows]] = {".jsonl": _json_lines, ".json": _json_array, ".parquet": _parquet}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise DataError(f"{path}: {reason}; name a file that can be read") from error


def _parse(line: bytes) -> Row | RowError:
    try:
        row = _decode(line)
    except _NOT_JSON as error:
        return RowError(f"not JSON ({error}); each line must be one JSON object")
    return _as_row(row, "each line must be one JSON object")


def _decode(content: bytes) -> Any:
    """Decode JSON whose numbers keep their spelling; an object with a repeated key becomes a `RowError`."""
    # msgspec refuses what Python's json accepts: NaN, lone surrogates, numbers out of range.
    msgspec.json.decode(content)
    return json.loads(content.decode(), object_pairs_hook=_object, parse_int=Number, parse_float=Number)


def _object(pairs: list[tuple[str, Any]]) -> Row | RowError:
    row = dict(pairs)
    if len(row) == len(pairs):
        return row
    names = [name for name, _ in pairs]
    repeated = next(name for name in row if names.count(name) > 1)
    return RowError(f'the key "{repeated}" occurs {names.count(repeated)} times; keep one of them')


def _as_row(value: Any, remedy: str) -> Row | RowError:
    return value if isinstance(value, dict | RowError) else RowError(f"{kind_of(value)}, not an object; {remedy}")
