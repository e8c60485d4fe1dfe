"""`data.settings`: the arguments of a task, written as name=value with a TOML value."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from freerun.config.data import DataConfig
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


def call_with_settings(function: Callable[..., Any], settings: Mapping[str, Any], *, task: str) -> Any:
    """What the task's function returns for its settings; says which ones it takes if these are not."""
    try:
        signature = inspect.signature(function)
        signature.bind(**settings)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise ConfigError(f'config: data.settings: {error}; data.task = "{task}" takes {takes}') from error
    return function(**settings)
