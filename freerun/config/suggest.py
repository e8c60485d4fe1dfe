"""The nearest key for one that does not exist: a misspelling, or another framework's name."""

import difflib
from collections.abc import Collection

from freerun.config.other_names import OTHER_NAMES

_OURS = {other: key for key, others in OTHER_NAMES.items() for other in others.split()}


def nearest(key: str, known: Collection[str]) -> list[str]:
    """The nearest of the known keys (and sections, which have no dot), if any.

    In this order: the same letters, a slip of one letter, another framework's name, the right name in another
    section, a misspelt key, a misspelt name in another section.
    """
    name = key.rpartition(".")[2]
    by_letters = {_letters(candidate): candidate for candidate in known}
    if _letters(key) in by_letters:
        return [by_letters[_letters(key)]]
    very_close = difflib.get_close_matches(key, known, n=1, cutoff=0.9)
    elsewhere = name.replace("-", "_").lower()
    if very_close or elsewhere in _OURS:
        return very_close or [_OURS[elsewhere]]
    by_name: dict[str, list[str]] = {}
    for candidate in known:
        if "." in candidate:
            by_name.setdefault(candidate.rpartition(".")[2], []).append(candidate)
    close_keys = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if name not in by_name and close_keys:
        return close_keys
    close_names = [name] if name in by_name else difflib.get_close_matches(name, by_name, n=1, cutoff=0.75)
    candidates = [candidate for close in close_names for candidate in by_name[close]]
    # lr and path stand in several sections; [sft] is the rarest.
    candidates = [candidate for candidate in candidates if not candidate.startswith("sft.")] or candidates
    return difflib.get_close_matches(key, candidates, n=1, cutoff=0.0)


def _letters(key: str) -> str:
    """The key without separators: topk is top_k."""
    return "".join(character for character in key.lower() if character.isalnum())
