"""A user's function, named "module:function": found and imported in the same way for every key that takes one.

A `my_task.py` in the current directory is enough. That directory is searched last: a `random.py` in it must not
replace Python's own for everything else in the process. Importing runs the user's code; the caller decides in
which process.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from freerun.errors import ConfigError

NUM_TRACEBACK_LINES = 12
MAX_FAILURE_CHARACTERS = 2000


def is_user_code(name: str) -> bool:
    """Whether the name of a task, grader, objective or listener is a function of the user's."""
    return ":" in name


def split_name(name: str, *, setting: str) -> tuple[str, str]:
    """The module and the function of "module:function"; nothing is imported."""
    module_name, _, function_name = name.partition(":")
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(
            f'config: {setting}: "{name}" names a file, not a module; leave out .py: "{meant}:{function_name}"'
        )
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
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    # Anything that the user's module does on import is reported, even an exit.
    except BaseException as error:
        _check_not_hidden(name, module_name, setting)
        raise ConfigError(
            f'config: {setting}: "{name}": importing {module_name} failed with {type(error).__name__}: {error}; '
            f"{_remedy(module_name, error)}"
        ) from error
    _check_not_hidden(name, module_name, setting)
    function = getattr(module, function_name, None)
    if function is None:
        raise ConfigError(
            f'config: {setting}: "{name}": {module.__file__} has no function "{function_name}"; '
            f"it has {_names_of_functions(module)}"
        )
    if not callable(function):
        raise ConfigError(f'config: {setting}: "{name}" is a {type(function).__name__}, not a function')
    return module, function


def check_signature(
    function: Callable[..., Any], *args: object, name: str, setting: str, shape: str, **kwargs: object
) -> None:
    """Refuse a user's function that cannot be called with these arguments; `shape` is how to define it."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f'config: {setting}: "{name}" cannot be called with its arguments ({error}); define it as def {shape}'
        ) from error
    except ValueError:
        pass  # a function of an extension module may have no signature


def end_of_traceback() -> str:
    """Where the user's code has just failed, and with which exception, for another process."""
    lines = traceback.format_exc().strip().splitlines()
    return sendable("\n".join(lines[-NUM_TRACEBACK_LINES:]))


def sendable(reason: str) -> str:
    """The end of a user's message: it may have any length, and text that cannot be encoded."""
    return reason[-MAX_FAILURE_CHARACTERS:].encode(errors="replace").decode()


def _remedy(module_name: str, error: BaseException) -> str:
    """What to do about a module that cannot be imported: find it, or fix it."""
    top = module_name.split(".")[0]
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == top:
        return f"run freerun in the directory of {top}.py, or install it (searched {os.getcwd()})"
    return f"fix {module_name}"


def _check_not_hidden(name: str, module_name: str, setting: str) -> None:
    """Refuse if a module in the current directory was hidden by another of the same name."""
    top = module_name.split(".")[0]
    here, imported = Path.cwd(), getattr(sys.modules.get(top), "__file__", None)
    own = next((file for file in (here / f"{top}.py", here / top / "__init__.py") if file.is_file()), None)
    is_imported = top in sys.modules
    if own is not None and is_imported and (imported is None or Path(imported).resolve() != own.resolve()):
        raise ConfigError(
            f'config: {setting}: "{name}": {own.relative_to(here)} in this directory is hidden by another module '
            f"{top} ({imported or 'of Python itself'}); rename yours"
        )


def _names_of_functions(module: Any) -> str:
    names = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
    return ", ".join(names) or "none"
