"""`freerun track`: report a run to trackers, while it is active or after it has ended."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run
from freerun.errors import FreerunError

EPILOG = """\
Everything is reported from the run's store, from its first step on; a run that lives is followed to its end.
Ctrl-C stops the reporting, not the run. A recipe does the same from the start: report.to = ["wandb"].

examples:
  freerun track runs/demo --to tensorboard
  freerun track runs/demo --to wandb --to mlflow --project demo
  freerun track runs/demo --to my_module:MyReporter
"""
REST_SECONDS = 30.0
"""Time for trackers to receive the remaining events after Ctrl-C."""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)

    from freerun.events.reader import RunReader
    from freerun.trackers.launching import Reporters
    from freerun.trackers.registry import check_trackers
    from freerun.trackers.reporting import ReportOptions

    found = find_run(args.run)
    directory = found if found.is_dir() else found.parent
    with RunReader(directory) as reader:
        summary = reader.status()
    check_trackers(args.to, setting="freerun track --to")
    pending = args.to if args.again or summary.state == "running" else _unreported(directory, args.to)
    if not pending:
        return 0
    options = ReportOptions(project=args.project, samples_every=args.samples_every, is_again=args.again)
    reporters = Reporters(directory, pending, options)
    failures = []
    try:
        while reporters.busy:
            failures += list(reporters.failures())
            time.sleep(0.1)
    except KeyboardInterrupt:
        reporters.finish(failures.append, wait_seconds=REST_SECONDS)
        print("stopped; the same command continues", file=sys.stderr)
    reporters.finish(failures.append, wait_seconds=REST_SECONDS)
    for process in reporters.processes:
        if not process.failure and not process.is_over:
            print(f"{process.tracker} has everything of {directory}")
    if failures:
        raise FreerunError("; ".join(failures))
    return 0


def _unreported(directory: Path, trackers: Sequence[str]) -> list[str]:
    """The trackers that have not received everything; prints those that have."""
    from freerun.events.reader import RunReader
    from freerun.trackers.cursor import cursor_file, read_cursor

    with RunReader(directory) as reader:
        last = reader.last_step()
    pending = []
    for tracker in trackers:
        cursor = read_cursor(cursor_file(directory, tracker))
        if cursor is None or not cursor.is_closed or cursor.last_step != (last.version if last else 0):
            pending.append(tracker)
        else:
            print(f"{tracker} has everything of {directory}; --again reports it again")
    return pending


def _parser() -> Parser:
    parser = Parser(
        "freerun track",
        "Report a run to trackers, while it lives or when it has ended.",
        EPILOG,
        usage="RUN --to TRACKER [--to TRACKER ...]",
    )
    parser.take("run", "RUN", EXPLANATION)
    names = "jsonl, tensorboard, wandb, trackio, mlflow, opentelemetry, or module:class"
    parser.take("--to", "TRACKER", names, type=str, action="append", required=True)
    parser.take("--project", "NAME", "project or experiment; default: freerun", type=str, default="freerun")
    parser.take("--samples-every", "STEPS", "send completions after so many steps", type=int, default=0)
    parser.flag("--again", "report everything, even if it was reported before")
    return parser
