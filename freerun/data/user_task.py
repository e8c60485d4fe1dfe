"""A user's own task, `data.task = "module:function"`: a function that yields rows, or whole problems.

The current directory is searched first, as `python` itself would: a `my_task.py` beside the recipe is enough.
Rows are worded by the recipe's templates like those of a file; a row's "key" names it, else its place does, so
it must always yield the same rows in the same order.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from freerun.config.data import DataConfig
from freerun.data.problem import Problem
from freerun.data.rows import Row, RowError, kind_of, to_problems
from freerun.data.settings import call_with_settings, settings_of
from freerun.errors import ConfigError, DataError


def import_task(name: str) -> tuple[Any, Callable[..., Any]]:
    """The user's module and its function; importing runs the user's code."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise ConfigError(
            f'config: data.task = "{name}" does not name a function; write "module:function", '
            'such as "my_task:problems" for problems() in my_task.py'
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    # Whatever the user's module does on import, an exit included, is reported and not obeyed.
    except BaseException as error:
        raise ConfigError(
            f'config: data.task = "{name}": importing {module_name} failed with {type(error).__name__}: {error}; '
            f"run freerun in the directory of {module_name.split('.')[0]}.py, or install it"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f'config: data.task = "{name}": {module.__file__} has no function "{function_name}"')
    return module, function


def problems(function: Callable[..., Any], config: DataConfig) -> tuple[Problem, ...]:
    """What the function yields for `data.settings`, rows and problems in their order."""
    made = call_with_settings(function, settings_of(config), task=config.task)
    try:
        items = list(made)
    except Exception as error:  # the edge of user code
        raise DataError(f'data.task = "{config.task}" failed with {type(error).__name__}: {error}') from error
    if not items:
        raise DataError(f'data.task = "{config.task}" yields nothing; each problem is a dictionary of fields')
    is_worded = all(isinstance(item, Problem) for item in items)
    found = tuple(items) if is_worded else to_problems(_rows(items), config)
    _require_unique_keys(found, config.task)
    return found


def _rows(items: list[Any]) -> Iterator[tuple[str, Row | RowError]]:
    for index, item in enumerate(items):
        if isinstance(item, dict):
            yield str(item.get("key", index)), item
        else:
            yield str(index), RowError(f"{kind_of(item)}, not a dictionary such as dict(question=..., answer=...)")


def _require_unique_keys(problems: tuple[Problem, ...], task: str) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.key in seen:
            raise DataError(f'data.task = "{task}" yields two problems of key "{problem.key}"; make keys unique')
        seen.add(problem.key)
