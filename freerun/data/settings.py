"""Checks what a recipe gives to a task: `data.settings`, its arguments, and packages that only some tasks need."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from freerun.config.arguments import read_arguments
from freerun.config.data import WORDING_KEYS, DataConfig
from freerun.errors import ConfigError, DataError


def settings_of(config: DataConfig) -> dict[str, Any]:
    return read_arguments(config.settings, key="data.settings")


def check_settings(function: Callable[..., Any], settings: Mapping[str, Any], *, task: str) -> None:
    """Raise for settings that the task's function does not take; the error lists those that it takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function of an extension module may not have a signature
    try:
        signature.bind(**settings)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise ConfigError(f'config: data.settings: {error}; data.task = "{task}" takes {takes}') from error


def require_no_wording(config: DataConfig) -> None:
    """Raise for templates of a task that words its prompts itself: they would be ignored."""
    for key in WORDING_KEYS:
        if getattr(config, key) != getattr(DataConfig, key):
            raise ConfigError(
                f'config: data.{key} means nothing for data.task = "{config.task}", which words its prompts '
                "itself; remove it"
            )


def require_extra(module: str, *, needed_for: str) -> Any:
    """Import the module, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(f"{needed_for} needs {package} ({error}); pip install 'freerun[tasks]'") from error
