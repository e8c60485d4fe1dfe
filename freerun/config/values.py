"""What a key may be set to: types that carry their limits, and the error for a value that does not fit.

    num_workers: NumProcesses      means      num_workers: Annotated[int, Meta(ge=1, le=1024)]

msgspec checks the type and the limits; this module turns its refusals into one line that names the key, the value,
where it was written and what would be right. Upper limits are not tuned: they lie beyond what any machine can do,
and below what overflows or runs out of memory long after a run has started.
"""

import difflib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from freerun.errors import ConfigError

MAX_NAME_BYTES = 255
"""Longest path component on all common file systems."""
MAX_PATH_BYTES = 4095
MAX_SHOWN_CHARS = 200

NumProcesses = Annotated[int, Meta(ge=1, le=1024)]
NumThreads = Annotated[int, Meta(ge=0, le=1024)]
GroupCount = Annotated[int, Meta(ge=1, le=65_536)]
"""Prompts of a step, completions of a prompt, sequences of an engine."""
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
CountOrNone = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0.001, le=31_536_000)]
LearningRate = Annotated[float, Meta(ge=1e-20, le=10)]
Factor = Annotated[float, Meta(ge=1e-9, le=1e9)]
"""A scale, a limit or a weight that float32 can hold and divide by."""
Coefficient = Annotated[float, Meta(ge=0, le=1e9)]
MAX_REWARD = 1e9
"""Largest magnitude of a reward. Advantages are differences and squares of rewards, and gradients are
float32: far larger rewards would overflow, and every update would be skipped."""
RewardValue = Annotated[float, Meta(ge=-MAX_REWARD, le=MAX_REWARD)]
MAX_TEMPERATURE = 1000
Share = Annotated[float, Meta(ge=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
ShareAboveZero = Annotated[float, Meta(gt=0, le=1)]


def path_fault(path: str) -> str:
    """Why no file can have this path; empty if one can."""
    if "\0" in path:
        return "holds a NUL character, which no path can have"
    total, *parts = (len(part.encode()) for part in (path, *path.split("/")))
    if total <= MAX_PATH_BYTES and max(parts) <= MAX_NAME_BYTES:
        return ""
    return (
        f'= "{path[:40]}..." is too long for a path: {total:,} bytes; at most {MAX_PATH_BYTES:,} in all and '
        f"{MAX_NAME_BYTES} between slashes"
    )


FilePath = Annotated[str, path_fault]
"""The function that annotates a type takes a value of it and returns what is wrong with it."""


def checked(key: str, value: Any, hint: Any, where: str = "") -> Any:
    """The value as its type wants it: only an integer becomes a float, and an array a tuple."""
    try:
        converted = msgspec.convert(value, hint)
        if isinstance(converted, str):
            converted.encode()  # bytes of the command line that are not UTF-8 cannot be written to config.toml
    except (msgspec.ValidationError, UnicodeEncodeError):
        place = f" {where}" if where else ""
        nearest = did_you_mean(str(value), get_args(hint)) if get_origin(hint) is Literal else ""
        raise ConfigError(
            f"config: {key} = {shown(value)}{place} must be {describe_type(hint)}{nearest}"
        ) from None
    for find_fault in filter(callable, getattr(hint, "__metadata__", ())):
        if fault := find_fault(converted):
            raise ConfigError(f"config: {key} {fault}")
    return converted


def bare_type(hint: Any) -> Any:
    """The type without its limits."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def describe_type(hint: Any) -> str:
    """What a value of this type is, for errors: `an integer between 1 and 1,024`."""
    kind = bare_type(hint)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return "an array of strings" if item is str else f"an array of numbers{_describe_limits(item)}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a string of UTF-8 text"}
    return names[kind] + _describe_limits(hint)


def _describe_limits(hint: Any) -> str:
    for limit in getattr(hint, "__metadata__", ()):
        if isinstance(limit, Meta):
            low = _number(limit.ge if limit.gt is None else limit.gt)
            high = _number(limit.le if limit.lt is None else limit.lt)
            if limit.gt is None and limit.lt is None:
                return f" between {low} and {high}"
            return f" in {'[' if limit.gt is None else '('}{low}, {high}{']' if limit.lt is None else ')'}"
    return ""


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}".replace("e-0", "e-").replace("e+0", "e")


def did_you_mean(given: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """The end of an error about an unknown name: the nearest known one, else another remedy."""
    near = difflib.get_close_matches(given, list(known), n=1)
    remedy = f'did you mean "{near[0]}"?' if near else otherwise
    return f"; {remedy}" if remedy else ""


def shown(value: Any) -> str:
    """The value for an error, shortened if it is long."""
    try:
        text = as_toml(value)
    except ValueError:  # Python refuses to write thousands of digits
        return (
            f"a number of {value.bit_length():,} bits" if isinstance(value, int) else "numbers that are too long"
        )
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}... ({len(text):,} characters)"


def as_toml(value: Any) -> str:
    """The value as a recipe would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string except for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(name)} = {as_toml(item)}" for name, item in value.items()) + "}"
    return str(value)
