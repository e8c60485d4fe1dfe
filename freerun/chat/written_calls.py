"""A tool call as the policy wrote it, and the requirements of every format."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

_MAX_DEPTH = 64
"""Limit on nested lists and objects; templates, clients and msgpack recurse over arguments."""


@dataclass(frozen=True)
class WrittenCall:
    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(frozen=True)
class Found:
    """The calls in a text, and the text without them."""

    content: str
    calls: tuple[WrittenCall, ...]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


STRICT_JSON = json.JSONDecoder(parse_constant=_refuse)
"""Without NaN and Infinity; raises ValueError, or RecursionError for thousands of brackets."""


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether others can read the value: finite, not too deep, and without lone surrogates, which are not text."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return depth < _MAX_DEPTH and _are_plain([*value, *value.values()], depth)
    if isinstance(value, list):
        return depth < _MAX_DEPTH and _are_plain(value, depth)
    return True


def _are_plain(values: Iterable[Any], depth: int) -> bool:
    return all(is_plain(value, depth + 1) for value in values)


def parsed_arguments(arguments: str) -> Any:
    """The value of a call's arguments; the text itself if it is not JSON that others can read."""
    try:
        value = STRICT_JSON.decode(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if is_plain(value) else arguments
