"""A table on a terminal or in a pipe. Names and values come from files: escape sequences in them are removed.

The first column is a name that people copy, so it is never broken. A pipe gets lines of any length; on a narrow
terminal each name gets a line above its numbers.
"""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from freerun.terminal.wording import printable

TableCell = str | Text
UNLIMITED = 100_000
"""A width in columns that no line exceeds."""


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[TableCell]],
    notes: Iterable[str] = (),
    *,
    console: Console | None = None,
) -> None:
    """Print the rows, the first column aligned left and the others right, and the notes below."""
    console, rows = console or Console(), list(rows)
    table = as_table(header, rows)
    width = _width_of(table)
    if console.is_terminal and width > console.width:
        numbers = _lines(as_table(header[1:], [row[1:] for row in rows], num_names=0))
        for name, line in zip([header[0], *(row[0] for row in rows)], numbers, strict=True):
            console.print(_text(name), soft_wrap=True)
            console.print(Text("  ") + line, no_wrap=True, overflow="ellipsis")
    else:
        console.width = max(width, console.width)
        console.print(table)
    for note in notes:
        console.print(Text(f"note: {printable(note)}", "yellow"), soft_wrap=True)


def as_table(header: Sequence[str], rows: Iterable[Sequence[TableCell]], *, num_names: int = 1) -> Table:
    """A table of plain text, never markup: a run may be called "[red]"."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(header):
        table.add_column(Text(heading), justify="left" if index < num_names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: TableCell) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))


def _width_of(table: Table) -> int:
    wide = Console(width=UNLIMITED)
    return Measurement.get(wide, wide.options, table).maximum


def _lines(table: Table) -> list[Text]:
    """The printed lines of the table, with their styles."""
    console = Console(width=_width_of(table))
    return [
        Text.assemble(*((segment.text, segment.style or "") for segment in line))
        for line in console.render_lines(table)
    ]
