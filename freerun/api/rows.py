"""Rows of data that a program has in memory: kept in the run directory, where the task "file" reads them."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.recipe import Recipe
from freerun.errors import DataError
from freerun.session.run_directory import DATA_FILE


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The rows as JSON lines."""
    if not isinstance(rows, list | tuple):
        raise DataError(f"data is of type {type(rows).__name__}; pass a list of rows, each a dict")
    if not rows:
        raise DataError("data has no rows; each must be a dict")
    return b"".join(_encode(index, row) for index, row in enumerate(rows))


def _encode(index: int, row: Mapping[str, Any]) -> bytes:
    if not isinstance(row, Mapping):
        raise DataError(f"data[{index}] is of type {type(row).__name__}; a row is a dict")
    try:
        return msgspec.json.encode(dict(row)) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise DataError(f"data[{index}] cannot be written as JSON: {error}") from error


def with_rows(recipe: Recipe) -> Recipe:
    """The recipe with the rows of its run directory as its data; wording and held-out settings stay."""
    path = Path(recipe.run.directory) / recipe.run.name / DATA_FILE
    held_out = recipe.data.held_out_path if recipe.data.task == "file" else ""
    data = dataclasses.replace(
        recipe.data, task="file", path=str(path), held_out_path=held_out, settings=(), mixture={}, weights=()
    )
    return dataclasses.replace(recipe, data=data)
