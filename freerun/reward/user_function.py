"""A user's own grader, named "module:function": found, imported and checked before the first grade.

Importing runs the user's code, so it happens in a grader process, never in the controller. The current
directory is searched first, as `python` itself would: a `my_task.py` beside the recipe is enough.

An async function runs on one event loop that lives as long as the process, so that an HTTP client made in one
grade serves the next. Grades still come one at a time: more of them at once are more `reward.num_workers`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from freerun.errors import ConfigError


def split_name(name: str) -> tuple[str, str]:
    """The module and the function of "module:function"."""
    module_name, _, function_name = name.partition(":")
    parts = [*module_name.split("."), function_name]
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            f'config: reward.grader: "{name}" does not name a function; write "module:function", '
            'such as "my_task:grade" for grade() in my_task.py'
        )
    return module_name, function_name


def import_function(name: str) -> Callable[[str, str, str], Any]:
    """A grader that calls the function, with prompt, completion and answer by keyword."""
    module_name, function_name = split_name(name)
    module = _import_module(name, module_name)
    function = getattr(module, function_name, None)
    if function is None:
        raise ConfigError(
            f'config: reward.grader: "{name}": {module.__file__} has no function "{function_name}"; '
            f"it has {_names_of_functions(module)}"
        )
    _check_call(name, function)

    def grade(prompt: str, completion: str, answer: str) -> Any:
        verdict = function(prompt=prompt, completion=completion, answer=answer)
        return _event_loop().run(verdict) if inspect.iscoroutine(verdict) else verdict

    return grade


@cache
def _event_loop() -> asyncio.Runner:
    """The loop of all async functions of this process, which may share what they hold."""
    return asyncio.Runner()


def _import_module(name: str, module_name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    # Whatever the user's module does on import, an exit included, is reported and not obeyed.
    except BaseException as error:
        raise ConfigError(
            f'config: reward.grader: "{name}": importing {module_name} failed with '
            f"{type(error).__name__}: {error}; run freerun in the directory of {module_name.split('.')[0]}.py, "
            f"or install it (searched {os.getcwd()} first)"
        ) from error


def _check_call(name: str, function: Any) -> None:
    if not callable(function):
        raise ConfigError(f'config: reward.grader: "{name}" is a {type(function).__name__}, not a function')
    try:
        inspect.signature(function).bind(prompt="", completion="", answer="")
    except TypeError as error:
        raise ConfigError(
            f'config: reward.grader: "{name}" cannot be called with its arguments ({error}); '
            "define it as def grade(prompt, completion, answer)"
        ) from error
    except ValueError:
        pass  # a function of an extension module may not tell its signature


def _names_of_functions(module: Any) -> str:
    names = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
    return ", ".join(names) or "none"
