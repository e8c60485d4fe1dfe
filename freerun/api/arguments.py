"""Checks what a program passes to the library: settings by their types, rows of data, reward functions.

Errors name the argument, its value or type, and what to pass instead.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.recipe import Recipe
from freerun.config.values import checked
from freerun.errors import ConfigError, DataError
from freerun.reward.graders import CALLERS_MODULE
from freerun.session.run_directory import DATA_FILE


def wrong_type(name: str, value: object, instead: str) -> ConfigError:
    return ConfigError(f"{name} is of type {type(value).__name__}; pass {instead}")


def require_type(name: str, value: object, kinds: type | tuple[type, ...], instead: str) -> None:
    if not isinstance(value, kinds):
        raise wrong_type(name, value, instead)


def setting(name: str, value: Any, hint: Any) -> Any:
    """The value converted to the type of a recipe's key, and checked against its limits."""
    try:
        return checked(name, value, hint)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("config: ")) from None


def require_texts(name: str, value: object) -> None:
    require_type(name, value, (list, tuple), "a list of texts")
    for index, text in enumerate(value if isinstance(value, list | tuple) else ()):
        require_type(f"{name}[{index}]", text, str, "texts")


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The rows as JSON lines."""
    require_type("data", rows, (list, tuple), "a list of rows, each a dict")
    if not rows:
        raise DataError("data has no rows; pass at least one dict")
    lines = []
    for index, row in enumerate(rows):
        require_type(f"data[{index}]", row, Mapping, "a dict")
        try:
            lines.append(msgspec.json.encode(dict(row)) + b"\n")
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise DataError(f"data[{index}] cannot be written as JSON: {error}") from error
    return b"".join(lines)


def with_rows(recipe: Recipe) -> Recipe:
    """The recipe with the rows in its run directory as data; wording and held-out settings are kept."""
    path = Path(recipe.run.directory) / recipe.run.name / DATA_FILE
    held_out = recipe.data.held_out_path if recipe.data.task == "file" else ""
    data = dataclasses.replace(
        recipe.data, task="file", path=str(path), held_out_path=held_out, settings=(), mixture={}, weights=()
    )
    return dataclasses.replace(recipe, data=data)


def grader_name(function: Callable[..., Any]) -> tuple[str, bool]:
    """The function's name in the run's config, and whether another process can import it under this name."""
    if not callable(function):
        raise wrong_type("reward", function, "a function such as def reward(prompt, completion, answer)")
    module_name, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    module = sys.modules.get(module_name or "")
    is_importable = (
        module_name != CALLERS_MODULE
        and str(name).isidentifier()
        and getattr(module, "__file__", None) is not None
        and getattr(module, "__spec__", None) is not None
        and getattr(module, name, None) is function
    )
    if is_importable:
        return f"{module_name}:{name}", True
    own = str(getattr(function, "__name__", type(function).__name__))
    return f"{CALLERS_MODULE}:{own if own.isidentifier() else 'function'}", False
