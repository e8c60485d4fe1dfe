"""A table of reports on a terminal. Names and values come from files, so none of them may act on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from freerun.runtime.wording import printable


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> None:
    """Print the rows, the first column as text and the others as numbers, and what must be known about them."""
    console = Console()
    console.print(as_table(header, rows))
    for note in notes:
        console.print(Text(f"note: {printable(note)}", "yellow"))


def as_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Cells are texts, never markup: a run may be called "[red]"."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(header):
        is_number = index > 0
        table.add_column(
            Text(heading), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
