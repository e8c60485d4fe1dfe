"""What a stage says when a value of its configuration makes no sense."""

from __future__ import annotations

from freerun.errors import ConfigError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(f"config: {message}")


def require_positive(section: str, **values: float) -> None:
    for name, value in values.items():
        require(value > 0, f"{section}.{name} = {value} must be greater than 0")
