"""A user's own grader, named "module:function": imported and checked before the first grade.

Importing runs the user's code, so it happens in a grader process, never in the controller.

An async function runs on one event loop that lives as long as the process, so that an HTTP client made in one
grade serves the next. Grades still come one at a time: more of them at once are more `reward.num_workers`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from freerun.config.user_code import import_named
from freerun.errors import ConfigError

SETTING = "reward.grader"


def import_function(name: str) -> Callable[[str, str, str], Any]:
    """A grader that calls the function, with prompt, completion and answer by keyword."""
    _, function = import_named(name, setting=SETTING)
    check_call(name, function)

    def grade(prompt: str, completion: str, answer: str) -> Any:
        verdict = function(prompt=prompt, completion=completion, answer=answer)
        return _event_loop().run(verdict) if inspect.iscoroutine(verdict) else verdict

    return grade


@cache
def _event_loop() -> asyncio.Runner:
    """The loop of all async functions of this process, which may share what they hold."""
    return asyncio.Runner()


def check_call(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with what a grader gets."""
    try:
        inspect.signature(function).bind(prompt="", completion="", answer="")
    except TypeError as error:
        raise ConfigError(
            f'config: {SETTING}: "{name}" cannot be called with its arguments ({error}); '
            "define it as def grade(prompt, completion, answer)"
        ) from error
    except ValueError:
        pass  # a function of an extension module may not tell its signature
