"""`freerun study`: runs a recipe over a grid of settings and seeds; can be stopped and repeated."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.errors import EXIT_INTERRUPTED, FreerunError

if TYPE_CHECKING:
    from freerun.reports.study import Study

EPILOG = """\
Every combination of the values is run with every seed, seed by seed. The same command continues a study that was
stopped: finished runs are kept, an interrupted one is resumed. More values or seeds add runs. If the recipe has a
warm start it is done once and shared.

examples:
  freerun study euclid --over buffer.max_staleness=0,4 --seeds 3 --dry-run
  freerun study euclid --over buffer.max_staleness=0,1,4 --over train.lr=1e-5,2e-5 --seeds 3
  freerun study euclid --over objective.preset=areal,grpo,dapo --seeds 5 --out studies/presets --train.num_steps 60
  freerun study euclid --seeds 5
  freerun study euclid --seeds 5 --report
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)

    from freerun.reports.drawing import require_matplotlib
    from freerun.reports.study import plan_study

    study = plan_study(args.recipe, overrides, over=args.over, num_seeds=args.seeds, directory=args.out)
    if args.dry_run:
        return _list_runs(study)
    require_matplotlib()
    return _report(study, {}) if args.report else _run(study)


def _list_runs(study: Study) -> int:
    from freerun.reports.study import state_of
    from freerun.reports.study_runner import train_arguments

    for run in study.all_runs:
        state = state_of(run)
        print(f"{state:<10} freerun {shlex.join(train_arguments(run, is_resumed=state == 'to resume'))}")
    return 0


def _run(study: Study) -> int:
    from rich.console import Console
    from rich.text import Text

    from freerun.reports.study_runner import StudyRunner

    try:
        study.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FreerunError(
            f'"{study.directory}" cannot be made ({error.strerror or error}); name another with --out DIR'
        ) from error
    console = Console(highlight=False)
    with console.status("") if console.is_terminal else contextlib.nullcontext() as status:

        def tell(line: str, lasts: bool) -> None:
            if lasts:
                console.print(Text(line), soft_wrap=True)
            if status:
                status.update(Text(line))

        runner = StudyRunner(study, tell)
        runner.run()
    code = _report(study, runner.failures)
    return EXIT_INTERRUPTED if runner.is_stopped else code


def _report(study: Study, failures: dict[str, str]) -> int:
    """Write the files and print the table; 1 if a run failed, now or when it was last tried."""
    from freerun.cli.report_table import print_table
    from freerun.reports.compare import TERMINAL_COLUMNS, table_rows
    from freerun.reports.groups import summarise
    from freerun.reports.study import find_failures, finished_groups
    from freerun.reports.study_report import FILES, write_report
    from freerun.terminal.wording import brief

    groups, failures = finished_groups(study), find_failures(study) | failures
    if not any(group.records for group in groups) and not failures:
        print(f"none of the {len(study.runs)} runs of {study.directory} has finished: nothing to report yet")
        return 0
    write_report(study, groups, failures, ["freerun", *sys.argv[1:]])
    notes = [f"{name} failed: {brief(why)}" for name, why in failures.items()]
    missing = len(study.runs) - sum(len(group.records) for group in groups)
    notes += [f"{missing} of {len(study.runs)} runs are not finished"] if missing else []
    print_table(TERMINAL_COLUMNS, table_rows(summarise(groups), TERMINAL_COLUMNS), notes)
    print(f"wrote {', '.join(FILES)} to {study.directory}")
    return 1 if failures else 0


def _parser() -> Parser:
    usage = (
        "RECIPE [--over KEY=VALUE,VALUE ...] [--seeds N] [--out DIR] [--dry-run | --report]\n"
        "                     [--section.key value ...]"
    )
    description = "Run a recipe over settings and seeds, and report with intervals."
    parser = Parser("freerun study", description, EPILOG, usage=usage)
    parser.take("recipe", "RECIPE", "TOML file, or name of a shipped recipe")
    parser.take("--over", "KEY=VALUE,VALUE", "a key to study and its values; repeat it for a grid", type=str,
                action="append", default=[])  # fmt: skip
    parser.take("--seeds", "N", "seeds 0 to N - 1; default: %(default)s", type=int, default=3)
    parser.take("--out", "DIR", "default: studies/RECIPE-KEYS")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--dry-run", action="store_true", help="list the runs and their commands; run nothing")
    only.add_argument("--report", action="store_true", help="run nothing; report what is finished")
    return parser
