"""Positions in rendered text."""

from collections.abc import Sequence


def first_of(names: Sequence[str], text: str) -> tuple[int, str]:
    """The position of the first of these names, and the name; the text's end and "" if none occurs."""
    found = [(text.find(name), name) for name in names if name in text]
    return min(found, default=(len(text), ""))


def common_length(first: str, second: str) -> int:
    """Length of the common prefix of two texts."""
    if second.startswith(first):
        return len(first)
    differ = (n for n, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differ, len(second))
