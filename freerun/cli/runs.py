"""`freerun runs`: the runs in a directory, newest first, as a table or as JSON; removes those that are named."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
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
  freerun runs --rm times-tables first
"""
RUN_COLUMNS = ("name", "state", "step", "reward", "held-out", "disk", "updated")
STATE_STYLES = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red", "crashed": "red"}


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    directory = args.directory or Path(RunConfig().directory)
    # The default directory is missing before the first run; a named one must exist.
    if not directory.is_dir() and (args.directory or directory.exists()):
        raise FreerunError(f'"{directory}" is not a directory; name one that holds runs')

    if args.rm:
        return _remove(directory, args.rm, is_sure=args.yes)

    from freerun.events.reader import list_runs
    from freerun.events.run_files import disk_bytes

    summaries = list_runs(directory)
    sizes = {summary.name: disk_bytes(directory / summary.name) for summary in summaries}
    if args.json:
        import msgspec

        rows = [{**msgspec.to_builtins(summary), "disk_bytes": sizes[summary.name]} for summary in summaries]
        print(json.dumps(rows, indent=2))
        return 0

    if not summaries:
        print(f'no runs in "{directory}"')
        return 0

    from freerun.cli.report_table import print_table

    print_table(RUN_COLUMNS, table_rows(summaries, sizes, now=time.time()))
    return 0


def _remove(directory: Path, names: Sequence[str], *, is_sure: bool) -> int:
    from freerun.events.run_files import describe_bytes
    from freerun.session.run_removal import find_removable, remove_run

    runs = find_removable(directory, names)
    for run in runs:
        print(f"{run.path}  {describe_bytes(run.num_bytes)}")
    if not is_sure and not _is_confirmed(f"remove {'it' if len(runs) == 1 else f'these {len(runs)} runs'}?"):
        print("nothing was removed")
        return 1
    for run in runs:
        remove_run(run)
    print(f"removed; {describe_bytes(sum(run.num_bytes for run in runs))} freed")
    return 0


def _is_confirmed(question: str) -> bool:
    """Ask at the terminal; without a terminal nothing is removed."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise FreerunError("freerun runs --rm asks before it removes, and the input is not a terminal; add --yes")
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table_rows(summaries: Sequence[RunSummary], sizes: Mapping[str, int], *, now: float) -> list[list[TableCell]]:
    """The cells under `RUN_COLUMNS`, one line per run."""
    from rich.text import Text

    from freerun.events.accuracy import UNKNOWN, percent
    from freerun.events.run_files import describe_bytes

    return [
        [
            summary.name,
            Text(summary.state, style=STATE_STYLES.get(summary.state, "")),
            _progress(summary),
            UNKNOWN if summary.reward is None else f"{summary.reward:.2f}",
            UNKNOWN if summary.accuracy is None else percent(summary.accuracy),
            describe_bytes(sizes[summary.name]) if summary.name in sizes else UNKNOWN,
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
    usage = "[DIR] [--json] [--rm NAME ... [--yes]]"
    parser = Parser("freerun runs", "List the runs in a directory, or remove some.", EPILOG, usage=usage)
    parser.take("directory", "DIR", f"default: {RunConfig().directory}", nargs="?")
    parser.flag("--json", "print a JSON array instead of a table")
    parser.take("--rm", "NAME", "remove these runs, and say what that frees", type=str, nargs="+", default=[])
    parser.flag("--yes", "remove without asking")
    return parser
