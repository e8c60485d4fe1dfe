"""Converts values to JSON and back: the only data that may cross between an untrusted program and its tests.

Only values of exact built-in types come out of `decode`: `==`, `len` and `bool` on them are Python's, not the
program's. A subclass arrives as its base (a Counter as a dict, an IntEnum as an int), an iterator as an iterator
over its items. Other objects stay where they are and are sent as references:

    ["mine", 7, "function f", true, true]    an object of the sender, number 7 of those it has referred to:
                                             whether it is true, and whether it is callable
    ["yours", 7]                             number 7 of the receiver's objects, coming back

`link.py` decides what a reference can do. The decoder trusts nothing, because the sender may be hostile.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

MAX_ITEMS_OF_ITERATOR = 100_000
_MAX_JSON_INTEGER = 1 << 53

_TYPES: dict[str, type] = {
    t.__name__: t for t in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, type(None))
}
_CONTAINERS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class NotPlainError(TypeError):
    """A value that is not data, where only data is accepted."""


Refer = Callable[[Any], list[Any]]
"""Makes the reference to an object that is not data; may raise `NotPlainError`."""


def refuse(value: Any) -> list[Any]:
    """The `Refer` that accepts only data."""
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")


def encode(value: Any, refer: Refer = refuse) -> Any:
    """Encode a value as JSON; `refer` makes references to what is not data."""
    if value is None or type(value) in (bool, str, float):
        return value
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_MAX_JSON_INTEGER < number < _MAX_JSON_INTEGER else ["int", hex(number)]
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return [name, [encode(item, refer) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(k, refer), encode(v, refer)] for k, v in value.items()]]
    return _encode_rest(value, refer)


def _encode_rest(value: Any, refer: Refer) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if isinstance(value, bytes | bytearray):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    if isinstance(value, range):
        return ["range", [encode(n) for n in (value.start, value.stop, value.step)]]
    if isinstance(value, Decimal):
        return ["Decimal", str(value)]
    if isinstance(value, Fraction):
        return ["Fraction", [encode(value.numerator), encode(value.denominator)]]
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    # Reading an iterator exhausts it: with `refuse`, which only checks, it must not be read.
    if isinstance(value, (Iterator, *_VIEWS)) and refer is not refuse:
        items: list[Any] = list(itertools.islice(cast(Iterable[Any], value), MAX_ITEMS_OF_ITERATOR + 1))
        if len(items) > MAX_ITEMS_OF_ITERATOR:
            raise NotPlainError(f"an iterator of more than {MAX_ITEMS_OF_ITERATOR} items")
        return ["iterator", [encode(item, refer) for item in items]]
    return refer(value)


Resolve = Callable[[list[Any]], Any]
"""Turns a reference into its object on this side."""


def decode(data: Any, resolve: Resolve) -> Any:
    """Decode a JSON value; raises `NotPlainError`, `ValueError` or `TypeError` if `encode` did not make it."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise NotPlainError("a JSON object")
        return data
    kind, content = data[0], data[1]
    if kind in ("mine", "yours"):
        return resolve(data)
    if kind == "iterator" or kind in _CONTAINERS:
        items = [decode(item, resolve) for item in content]
        return iter(items) if kind == "iterator" else _CONTAINERS[kind](items)
    if kind == "dict":
        return {decode(key, resolve): decode(value, resolve) for key, value in content}
    return _decode_rest(kind, content)


def _decode_rest(kind: str, content: Any) -> Any:
    match kind:
        case "int":
            return int(content, 16)
        case "complex":
            return complex(float(content[0]), float(content[1]))
        case "bytes":
            return bytes.fromhex(content)
        case "bytearray":
            return bytearray.fromhex(content)
        case "range":
            return range(*(decode(n, refuse) for n in content))
        case "Decimal":
            return Decimal(content)
        case "Fraction":
            # Never from a string: "1e999999999" is short, but would become a gigabyte of digits.
            numerator, denominator = (decode(n, refuse) for n in content)
            return Fraction(numerator, denominator)
        case "type":
            return _TYPES[content]
    raise NotPlainError(f"an unknown kind of value {kind!r:.40}")
