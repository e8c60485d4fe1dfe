"""A function of the user's, named "module:function": found and imported the same way wherever one may be named.

The current directory is searched first, as `python` itself would: a `my_task.py` beside the recipe is enough.
Importing runs the user's code; whoever calls this decides in which process.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from freerun.errors import ConfigError


def split_name(name: str, *, setting: str) -> tuple[str, str]:
    """The module and the function of "module:function"; nothing is imported."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise ConfigError(
            f'config: {setting}: "{name}" does not name a function; write "module:function", '
            'such as "my_task:score" for score() in my_task.py'
        )
    return module_name, function_name


def import_named(name: str, *, setting: str) -> tuple[Any, Callable[..., Any]]:
    """The module and its function; `setting` is the key that names it, for errors."""
    module_name, function_name = split_name(name, setting=setting)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    # Whatever the user's module does on import, an exit included, is reported and not obeyed.
    except BaseException as error:
        raise ConfigError(
            f'config: {setting}: "{name}": importing {module_name} failed with {type(error).__name__}: {error}; '
            f"run freerun in the directory of {module_name.split('.')[0]}.py, or install it "
            f"(searched {os.getcwd()} first)"
        ) from error
    function = getattr(module, function_name, None)
    if function is None:
        raise ConfigError(
            f'config: {setting}: "{name}": {module.__file__} has no function "{function_name}"; '
            f"it has {_names_of_functions(module)}"
        )
    if not callable(function):
        raise ConfigError(f'config: {setting}: "{name}" is a {type(function).__name__}, not a function')
    return module, function


def _names_of_functions(module: Any) -> str:
    names = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
    return ", ".join(names) or "none"
