"""Formats numbers and foreign text for a terminal: plain strings in, plain strings out.

Prompts, completions and tracebacks are hostile: a model can sample an escape sequence that clears the screen,
and a data file can contain one. They reach a terminal only through `printable` and `printable_block`.
"""

import math
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

from freerun.types import Doing

BLOCKS = "▁▂▃▄▅▆▇█"
# Whole sequences are removed, so that no parameters remain: OSC and DCS strings, CSI, and others.
ESCAPES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
BEGIN = re.compile(r"(?:[\w-]{0,10} +)?(?:(?:alarm|warn|info) +|→ )?")
"""The beginning of a summary line, before its text: its name, a health level, an arrow."""
MIN_ROOM = 20
TRACEBACK_HEAD = "Traceback (most recent call last):"
MAX_MARKS = 2
"""Limit on accents per character: scripts need at most two, hostile text can stack hundreds."""
VISIBLE = {"\n": "⏎", "\r": "", "\t": " ", "\u2028": "⏎", "\u2029": "⏎"}


def printable(text: str, max_chars: int = 400) -> str:
    """One line without effects on a terminal: no escapes, controls, direction marks or stacked accents."""
    clean = ESCAPES.sub("", text[: 4 * max_chars])
    if clean.isascii() and clean.isprintable():
        return clean[:max_chars]
    return "".join(_visible(clean))[:max_chars]


def printable_block(text: str, max_lines: int = 30) -> str:
    """Several printable lines, all but the first indented; the middle of a long traceback is cut."""
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    if len(lines) > max_lines:
        lines = [lines[0], "...", *lines[2 - max_lines :]]
    return "\n    ".join(lines)


def wrapped(summary: str, width: int) -> str:
    """Break long lines between words, and indent continuations to where the text begins; long words stay whole."""
    lines = []
    for line in summary.splitlines():
        begin = BEGIN.match(line)
        indent = begin.end() if begin else 0
        room = max(width - indent, MIN_ROOM)
        pieces = textwrap.wrap(line[indent:], room, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [line[:indent] + pieces[0], *(" " * indent + piece for piece in pieces[1:])]
    return "\n".join(lines)


def brief(text: str) -> str:
    """One line for a text that is shown in full elsewhere: its first and its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = "".join(lines[:1]).removesuffix(TRACEBACK_HEAD).rstrip()
    joint = " " if first.endswith(":") else " ... "
    return joint.join(dict.fromkeys(filter(None, [first, *lines[-1:]])))


def describe_doing(doing: Doing) -> str:
    """For example `waiting for 1 of 2 groups` or `training: proximal, 3 of 8`."""
    if doing.state == "loading":
        return f"waiting for the engines to load {doing.what}"
    what = f" for {doing.what}" if doing.state == "waiting" else f": {doing.what}"
    words = doing.state + (what if doing.what else "")
    if doing.num_total is not None:
        return f"{words}, {doing.num_done} of {doing.num_total}"
    return words if doing.num_done is None else f"{words} {doing.num_done}"


def _visible(text: str) -> Iterator[str]:
    num_marks = 0
    for character in text:
        category = unicodedata.category(character)
        num_marks = num_marks + 1 if category in ("Mn", "Me") else 0
        if character in VISIBLE:
            yield VISIBLE[character]
        elif category == "Zs":
            yield " "
        elif category[0] != "C" and num_marks <= MAX_MARKS:
            yield character


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of a number in `width` characters, scaled from its minimum to its maximum."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    means = _bins(finite, width)
    low, high = min(means), max(means)
    if high == low:
        return BLOCKS[3] * len(means)
    return "".join(BLOCKS[round((mean - low) / (high - low) * 7)] for mean in means)


def _bins(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of consecutive values."""
    num_bins = min(width, len(values))
    edges = [i * len(values) // num_bins for i in range(num_bins + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def histogram(counts: dict[int, int], top: int) -> str:
    """One block per value from 0 to `top`, a dot for 0 occurrences."""
    most = max(counts.values(), default=0)
    heights = [counts.get(value, 0) for value in range(min(top, 31) + 1)]
    return "".join(BLOCKS[max(0, math.ceil(n / most * 8) - 1)] if n else "·" for n in heights)


def bar(share: float, width: int) -> str:
    """A share between 0 and 1 as a bar."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def duration(seconds: float) -> str:
    """For example 4.2 s, 1:05 or 2:03:04."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def share_of_time(share: float) -> str:
    """For example 83 %."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "?"


def count(number: float) -> str:
    """For example 12, 4,200 or 1.3 M."""
    if not math.isfinite(number):
        return "?"
    return f"{number:,.0f}" if abs(number) < 1e6 else f"{number / 1e6:,.1f} M"
