"""Numbers as words, and rows as Markdown and CSV: what tables show is made here, whoever shows them."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from freerun.events.accuracy import UNKNOWN, percent
from freerun.reports.intervals import Estimate


def accuracy_with_interval(estimate: Estimate) -> str:
    """`83.4 % ± 5.2 %`; `83.4 % [71.0 %, 91.2 %]` where the interval is not symmetric; `83.4 %` without one."""
    return _with_interval(estimate, percent)


def with_interval(estimate: Estimate, digits: int) -> str:
    """`1.25 ± 0.16`, or as above."""
    return _with_interval(estimate, lambda value: f"{value:.{digits}f}")


def _with_interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if not math.isfinite(mean):
        return UNKNOWN
    if not estimate.has_interval:
        return write(mean)
    if math.isclose(high - mean, mean - low, rel_tol=1e-6, abs_tol=1e-12):
        return f"{write(mean)} ± {write(estimate.half_width)}"
    return f"{write(mean)} [{write(low)}, {write(high)}]"


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else UNKNOWN


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold anything. The first column is text, the others are numbers."""
    lines = [[escape_markdown(cell) for cell in row] for row in [header, *rows]]
    lines.insert(1, ["---", *("---:" for _ in header[1:])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def brief(text: str) -> str:
    """The first and the last line of a long text: of a traceback, where it began and what it was."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def escape_markdown(text: str) -> str:
    """One line that means itself: names and values come from files."""
    line = "".join(character if character.isprintable() else " " for character in text)
    for special in "\\|`*<[":
        line = line.replace(special, "\\" + special)
    return line


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Numbers in full, what is not a number as an empty field."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            writer.writerow(["" if isinstance(v, float) and not math.isfinite(v) else v for v in row])
