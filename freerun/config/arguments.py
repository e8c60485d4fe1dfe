"""Arguments for a user's code, each written in a recipe as name=value in TOML: "size=50", 'split="train"'."""

import tomllib
from collections.abc import Sequence
from typing import Any

from freerun.errors import ConfigError


def read_arguments(settings: Sequence[str], *, key: str) -> dict[str, Any]:
    """The arguments by name; `key` is the setting that holds them, for errors."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, has_value, value = (part.strip() for part in setting.partition("="))
        if not has_value or not name.isidentifier():
            raise ConfigError(f"config: {key} holds {setting!r}; each is name=value, such as max_number=50")
        try:
            values[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(
                f'config: {key} holds {setting!r}, whose value is not TOML ({error}); text is quoted: {name}="..."'
            ) from error
    return values
