"""`data.settings`: the arguments of a task, each name=value in TOML; and settings that a task has no use for."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from freerun.config.data import WORDING_KEYS, DataConfig
from freerun.errors import ConfigError


def settings_of(config: DataConfig) -> dict[str, Any]:
    """The arguments by name."""
    values: dict[str, Any] = {}
    for setting in config.settings:
        name, has_value, value = (part.strip() for part in setting.partition("="))
        if not has_value or not name.isidentifier():
            raise ConfigError(
                f"config: data.settings holds {setting!r}; each is name=value, such as max_number=50"
            )
        try:
            values[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(
                f"config: data.settings holds {setting!r}, whose value is not TOML ({error}); "
                f'text is quoted: {name}="..."'
            ) from error
    return values


def check_settings(function: Callable[..., Any], settings: Mapping[str, Any], *, task: str) -> None:
    """Refuse settings that the task's function does not take, and say which ones it does."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function of an extension module may not tell its signature
    try:
        signature.bind(**settings)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise ConfigError(f'config: data.settings: {error}; data.task = "{task}" takes {takes}') from error


def require_no_wording(config: DataConfig) -> None:
    """Refuse templates for a task whose problems are worded already: they would be ignored."""
    for key in WORDING_KEYS:
        if getattr(config, key) != getattr(DataConfig, key):
            raise ConfigError(
                f'config: data.{key} means nothing for data.task = "{config.task}", whose problems are worded '
                "already; remove it"
            )
