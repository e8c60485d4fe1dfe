"""`freerun study`: all runs of a study from one command, which may be stopped and given again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freerun.cli.arguments import Parser, split_overrides
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.reports.study import Study
    from freerun.reports.study_runner import Progress

ETAS = ("0", "1", "2", "4", "8", "16", "inf")
OBJECTIVES = ("naive", "decoupled")
DESCRIPTION = """\
What staleness costs and wins: train by one recipe under several bounds (the paper's eta) and objectives,
with several seeds each, and write a table and a figure with confidence intervals.
"""
EPILOG = """\
The same command continues a study that was stopped: finished runs are not repeated, the one that was cut
short is resumed. A larger --seeds or more values of --eta add runs. If the recipe has a warm start it is done
once, and every run starts from its model.

examples:
  freerun study staleness euclid --eta 0 4 inf --seeds 3 --dry-run
  freerun study staleness euclid --seeds 5 --out studies/euclid --train.num_steps 60
  freerun study staleness euclid --seeds 5 --out studies/euclid --train.num_steps 60 --report
"""


def run(arguments: Sequence[str]) -> int:
    kind, *rest = arguments or ["--help"]
    if kind in ("-h", "--help"):
        print(f"usage: freerun study staleness RECIPE [...]\n\n{DESCRIPTION}\n{EPILOG}", end="")
        return 0
    if kind != "staleness":
        raise FreerunError(f'unknown study "{kind}"; there is one: staleness')
    return _staleness(rest)


def _staleness(arguments: Sequence[str]) -> int:
    own, overrides = split_overrides(arguments)
    args = _parser().parse_args(own)

    from freerun.reports.drawing import require_matplotlib
    from freerun.reports.study import plan_staleness

    directory = args.out or Path("studies") / f"staleness-{args.recipe.stem}"
    study = plan_staleness(
        args.recipe, overrides, etas=args.eta, objectives=args.objective, num_seeds=args.seeds, directory=directory
    )
    if args.dry_run:
        return _list_runs(study)
    require_matplotlib()
    return _report(study, {}) if args.report else _run(study)


def _list_runs(study: Study) -> int:
    from freerun.reports.study_runner import train_arguments
    from freerun.reports.study_state import state_of

    for run in study.all_runs:
        state = state_of(run)
        arguments = train_arguments(study, run, is_resumed=state == "to resume")
        print(f"{state:<10} freerun {shlex.join(arguments)}")
    return 0


def _run(study: Study) -> int:
    from freerun.reports.study_report import write_json
    from freerun.reports.study_runner import StudyRunner
    from freerun.reports.study_state import find_failures, finished_records
    from freerun.session.input_files import check_files

    check_files(study.recipe)
    try:
        study.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FreerunError(
            f'"{study.directory}" cannot be made ({error.strerror or error}); name another with --out DIR'
        ) from error
    with _Screen() as screen:

        def on_progress(progress: Progress) -> None:
            screen(progress)
            if progress.happening in ("finished", "failed"):
                write_json(study, finished_records(study.runs), find_failures(study), _command())

        runner = StudyRunner(study, on_progress)
        runner.run()
    code = _report(study, runner.failures)
    return 130 if runner.is_stopped else code


def _report(study: Study, failures: dict[str, str]) -> int:
    """Write the files, print the table; 1 if runs failed, now or when they were last tried."""
    from freerun.cli.report_table import print_table
    from freerun.reports.study_report import HEADER, SHORT_COLUMNS, summarise_conditions, table_rows, write_report
    from freerun.reports.study_state import find_failures, finished_records
    from freerun.reports.tables import brief

    records, failures = finished_records(study.runs), find_failures(study) | failures
    write_report(study, records, failures, _command())
    notes = [f"{name} failed: {brief(why)}" for name, why in failures.items()]
    missing = len(study.runs) - len(records)
    notes += [f"{missing} of {len(study.runs)} runs are not finished"] if missing else []
    rows = [HEADER, *table_rows(summarise_conditions(study, records))]
    header, *shown = [[row[column] for column in SHORT_COLUMNS] for row in rows]
    print_table(header, shown, notes)
    print(f"wrote study.png, study.csv, study.json and table.md to {study.directory}")
    return 1 if failures else 0


def _command() -> list[str]:
    return ["freerun", *sys.argv[1:]]


class _Screen:
    """Progress as lines, and on a terminal one more line that moves."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> _Screen:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        from rich.text import Text

        line = Text(_describe(progress))
        if progress.happening != "running":
            self._console.print(line, soft_wrap=True)
        if self._status:
            self._status.update(line)


def _describe(progress: Progress) -> str:
    from freerun.terminal.wording import duration, printable

    left = f", about {duration(progress.left_seconds)} left" if progress.left_seconds else ""
    detail = f": {printable(progress.detail)}" if progress.detail else ""
    return (
        f"[{progress.place}/{progress.num_runs}] {printable(progress.run.name)} {progress.happening}{detail}"
        f"  ({duration(progress.seconds)} so far{left})"
    )


def _parser() -> Parser:
    parser = Parser("freerun study staleness", DESCRIPTION, EPILOG)
    parser.usage = (
        "freerun study staleness RECIPE [--eta N ...] [--objective NAME ...] [--seeds N] [--out DIR]\n"
        "                               [--dry-run | --report] [--section.key value ...]"
    )
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help="TOML file, or name of a shipped recipe")
    parser.add_argument(
        "--eta", nargs="+", metavar="N", default=ETAS, help=f"bounds, or inf for none; default: {' '.join(ETAS)}"
    )
    parser.add_argument(
        "--objective",
        nargs="+",
        metavar="NAME",
        default=OBJECTIVES,
        help=f"naive, decoupled, or a preset of objective.preset; default: {' '.join(OBJECTIVES)}",
    )
    parser.add_argument("--seeds", type=int, metavar="N", default=5, help="seeds 0 to N - 1; default: %(default)s")
    parser.add_argument("--out", metavar="DIR", type=Path, help="default: studies/staleness-<recipe's name>")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--dry-run", action="store_true", help="list the runs and their commands; run nothing")
    only.add_argument("--report", action="store_true", help="write table and figure from what is finished")
    return parser
