"""A user's task, `data.task = "module:function"`: a function that yields rows, or finished prompts.

Rows are turned into prompts by the recipe's templates, like those of a file. A row's key is its "key" or its
position, so the function must always yield the same rows in the same order.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from freerun.config.data import DataConfig
from freerun.data.rows import Row, RowError, kind_of, to_prompts
from freerun.data.settings import check_settings, require_no_wording, settings_of
from freerun.data.task_prompt import TaskPrompt
from freerun.errors import DataError, FreerunError

MAX_PROMPTS = 1_000_000
"""Limit on prompts, which are all held in memory; a function that yields more probably never ends."""


def prompts(function: Callable[..., Any], config: DataConfig) -> tuple[TaskPrompt, ...]:
    items = _yielded(function, config)
    if not items:
        raise DataError(f'data.task = "{config.task}" yields nothing; each prompt is a dictionary of fields')
    is_worded = all(isinstance(item, TaskPrompt) for item in items)
    found = _checked(items, config) if is_worded else to_prompts(_rows(items), config)
    [(key, num_prompts)] = Counter(prompt.key for prompt in found).most_common(1)
    if num_prompts > 1:
        raise DataError(f'data.task = "{config.task}" yields two prompts with the key "{key}"; make keys unique')
    return found


def _yielded(function: Callable[..., Any], config: DataConfig) -> list[Any]:
    settings = settings_of(config)
    check_settings(function, settings, task=config.task)
    try:
        items = list(itertools.islice(function(**settings), MAX_PROMPTS + 1))
    except FreerunError:
        raise
    except (Exception, SystemExit) as error:  # the edge of user code
        raise DataError(f'data.task = "{config.task}" failed with {type(error).__name__}: {error}') from error
    if len(items) > MAX_PROMPTS:
        raise DataError(
            f'data.task = "{config.task}" yields more than {MAX_PROMPTS:,} prompts; make it end: all are '
            "read before the run starts"
        )
    return items


def _checked(items: Sequence[TaskPrompt], config: DataConfig) -> tuple[TaskPrompt, ...]:
    """Check finished prompts; raises if one lacks a text."""
    require_no_wording(config)
    for index, prompt in enumerate(items):
        for name in ("key", "text", "answer"):
            value = getattr(prompt, name)
            if not isinstance(value, str) or not value.strip():
                raise DataError(
                    f'data.task = "{config.task}": prompt {index} has {name} = {value!r}; it must be a string '
                    "that is not empty"
                )
    return tuple(items)


def _rows(items: Sequence[Any]) -> Iterator[tuple[str, Row | RowError]]:
    for index, item in enumerate(items):
        if isinstance(item, dict):
            yield str(item.get("key", index)), item
        else:
            yield str(index), RowError(f"{kind_of(item)}, not a dictionary such as dict(question=..., answer=...)")
