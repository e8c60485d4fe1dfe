"""`freerun compare`: runs side by side, seeds together, as a table and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.errors import FreerunError

EPILOG = """\
Runs that differ only in run.seed are one group: their mean, with a 95 % interval over seeds. A group is
named by the settings in which the groups differ.

examples:
  freerun compare runs/sync runs/async
  freerun compare studies/euclid/runs/* --out comparison
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)

    from freerun.cli.report_table import print_table
    from freerun.reports.compare import HEADER, notes, read_groups, table_rows, write_comparison
    from freerun.reports.drawing import require_matplotlib

    if args.out:
        require_matplotlib()
    groups = read_groups(args.runs)
    print_table(HEADER, table_rows(groups), notes(groups))
    if args.out:
        try:
            write_comparison(groups, args.out)
        except OSError as error:
            raise FreerunError(
                f'"{args.out}" cannot be written ({error.strerror or error}); name another with --out DIR'
            ) from error
        print(f"wrote compare.png, compare.csv and table.md to {args.out}")
    return 0


def _parser() -> Parser:
    parser = Parser("freerun compare", "Compare runs: curves, a table and all numbers.", EPILOG)
    parser.usage = "freerun compare RUN [RUN ...] [--out DIR]"
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run directory, such as runs/demo")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write compare.png, compare.csv and table.md here")
    return parser
