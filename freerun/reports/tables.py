"""Formats numbers as text, and rows as Markdown and CSV."""

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from freerun.events.accuracy import UNKNOWN
from freerun.events.pass_at_k import Estimate

CSV_FILE, TABLE_FILE = "compare.csv", "table.md"


def with_interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    """`83.4 % ± 5.2 %`; `83.4 % [71.0 %, 91.2 %]` if the interval is not symmetric; `83.4 %` without one."""
    value, low, high = estimate
    if not math.isfinite(value):
        return UNKNOWN
    if not estimate.has_interval:
        return write(value)
    if math.isclose(high - value, value - low, rel_tol=1e-6, abs_tol=1e-12):
        return f"{write(value)} ± {write(estimate.half_width).removeprefix('+')}"
    return f"{write(value)} [{write(low)}, {write(high)}]"


def number(digits: int) -> Callable[[float], str]:
    """A function that formats numbers with this many decimals."""
    return lambda value: f"{value:,.{digits}f}" if math.isfinite(value) else UNKNOWN


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign: `+1.3`."""
    return f"{100 * share:+.1f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of any text. The first column is aligned left, the others right."""
    lines = [[escape_markdown(cell) for cell in row] for row in [header, *rows]]
    lines.insert(1, ["---", *("---:" for _ in header[1:])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write_table(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[str]], text: str, notes: Iterable[str]
) -> None:
    """A Markdown file with a table, a text and notes."""
    told = "".join(f"\nNote: {escape_markdown(note)}\n" for note in notes)
    path.write_text(markdown(header, rows) + text + told, encoding="utf-8")


def escape_markdown(text: str) -> str:
    """Escape text to one line without markup: names and values come from files."""
    line = "".join(character if character.isprintable() else " " for character in text)
    for special in "\\|`*<[":
        line = line.replace(special, "\\" + special)
    return line


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Numbers in full; nan becomes an empty field."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            writer.writerow(["" if isinstance(v, float) and not math.isfinite(v) else v for v in row])
