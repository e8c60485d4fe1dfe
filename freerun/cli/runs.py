"""`freerun runs`: the runs in a directory, newest first, as a table or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.config.recipe import RunConfig
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.cli.report_table import TableCell
    from freerun.events.reader import RunSummary

EPILOG = """\
Newest first. A crashed run is one whose process died; "freerun train runs/NAME --resume" continues it.

examples:
  freerun runs
  freerun runs studies/euclid/runs
  freerun runs --json
"""
RUN_COLUMNS = ("name", "state", "step", "reward", "held-out", "updated")
STATE_STYLES = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red", "crashed": "red"}


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    directory = args.directory or Path(RunConfig().directory)
    # The default directory is missing before the first run; a named one must exist.
    if not directory.is_dir() and (args.directory or directory.exists()):
        raise FreerunError(f'"{directory}" is not a directory; name one that holds runs')

    from freerun.events.reader import list_runs

    summaries = list_runs(directory)
    if args.json:
        import msgspec

        print(json.dumps(msgspec.to_builtins(summaries), indent=2))
        return 0

    if not summaries:
        print(f'no runs in "{directory}"')
        return 0

    from freerun.cli.report_table import print_table

    print_table(RUN_COLUMNS, table_rows(summaries, now=time.time()))
    return 0


def table_rows(summaries: Sequence[RunSummary], *, now: float) -> list[list[TableCell]]:
    """The cells under `RUN_COLUMNS`, one line per run."""
    from rich.text import Text

    from freerun.events.accuracy import UNKNOWN, percent

    return [
        [
            summary.name,
            Text(summary.state, style=STATE_STYLES.get(summary.state, "")),
            _progress(summary),
            UNKNOWN if summary.reward is None else f"{summary.reward:.2f}",
            UNKNOWN if summary.accuracy is None else percent(summary.accuracy),
            ago(now - summary.updated),
        ]
        for summary in summaries
    ]


def _progress(summary: RunSummary) -> str:
    if summary.sft_step is not None:
        return f"SFT {summary.sft_step}/{summary.num_sft_steps}"
    return f"{summary.version}/{summary.num_steps}"


def ago(seconds: float) -> str:
    """A duration in its largest unit: `42 s ago`, `3 min ago`, `5 h ago`, `2 d ago`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _parser() -> Parser:
    parser = Parser("freerun runs", "List the runs in a directory.", EPILOG, usage="[DIR] [--json]")
    parser.take("directory", "DIR", f"default: {RunConfig().directory}", nargs="?")
    parser.flag("--json", "print a JSON array instead of a table")
    return parser
