"""Where something is in a rendered text."""

from collections.abc import Sequence


def first_of(names: Sequence[str], text: str) -> tuple[int, str]:
    """The position of the first of these names, and which it is; the end and nothing if none is there."""
    found = [(text.find(name), name) for name in names if name in text]
    return min(found, default=(len(text), ""))


def common_length(first: str, second: str) -> int:
    """How far two texts are the same."""
    if second.startswith(first):
        return len(first)
    differ = (n for n, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differ, len(second))
