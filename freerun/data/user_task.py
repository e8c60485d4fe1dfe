"""A user's own task, `data.task = "module:function"`: a function that yields rows, or whole problems.

Rows are worded by the recipe's templates like those of a file; a row's "key" names it, else its place does, so
it must always yield the same rows in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from freerun.config.data import DataConfig
from freerun.data.problem import Problem
from freerun.data.rows import Row, RowError, kind_of, to_problems
from freerun.data.settings import check_settings, require_no_wording, settings_of
from freerun.errors import DataError, FreerunError

MAX_PROBLEMS = 1_000_000
"""All are held in memory; a function that goes on beyond them has most likely no end."""


def problems(function: Callable[..., Any], config: DataConfig) -> tuple[Problem, ...]:
    """What the function yields for `data.settings`, rows and problems in their order."""
    items = _yielded(function, config)
    if not items:
        raise DataError(f'data.task = "{config.task}" yields nothing; each problem is a dictionary of fields')
    is_worded = all(isinstance(item, Problem) for item in items)
    found = _checked(items, config) if is_worded else to_problems(_rows(items), config)
    _require_unique_keys(found, config.task)
    return found


def _yielded(function: Callable[..., Any], config: DataConfig) -> list[Any]:
    settings = settings_of(config)
    check_settings(function, settings, task=config.task)
    try:
        items = list(itertools.islice(function(**settings), MAX_PROBLEMS + 1))
    except FreerunError:
        raise
    except (Exception, SystemExit) as error:  # the edge of user code
        raise DataError(f'data.task = "{config.task}" failed with {type(error).__name__}: {error}') from error
    if len(items) > MAX_PROBLEMS:
        raise DataError(
            f'data.task = "{config.task}" yields more than {MAX_PROBLEMS:,} problems; let it come to an end, '
            "since all are made before the run begins"
        )
    return items


def _checked(items: Sequence[Problem], config: DataConfig) -> tuple[Problem, ...]:
    """Problems that are worded already, each with the texts it needs."""
    require_no_wording(config)
    for index, problem in enumerate(items):
        for name in ("key", "text", "answer"):
            value = getattr(problem, name)
            if not isinstance(value, str) or not value.strip():
                raise DataError(
                    f'data.task = "{config.task}": problem {index} has {name} = {value!r}; it must be a string '
                    "that is not empty"
                )
    return tuple(items)


def _rows(items: Sequence[Any]) -> Iterator[tuple[str, Row | RowError]]:
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
