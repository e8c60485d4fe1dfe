"""`freerun compare`: runs with their seeds together, or evaluations prompt by prompt, as a table and as files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.errors import FreerunError

EPILOG = """\
Runs that differ only in run.seed form a group: its mean with a 95 % interval over seeds, and the difference from
the first group, paired by seed. Groups are named by the settings in which they differ.

Evaluations are compared with the first one, paired by prompt: the difference of accuracy with a 95 % interval over
prompts, and how many prompts got better or worse. All must have asked the same prompts.

examples:
  freerun compare runs/sync runs/async
  freerun compare runs/sync-* runs/async-* --out comparison
  freerun compare evals/base evals/trained
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)

    from freerun.evaluation.job import is_evaluation
    from freerun.reports.compare import check_distinct

    paths: list[Path] = args.directories
    check_distinct(paths)
    evaluations = [path for path in paths if is_evaluation(path)]
    if evaluations and len(evaluations) < len(paths):
        run = next(path for path in paths if path not in evaluations)
        raise FreerunError(
            f'"{evaluations[0]}" is an evaluation and "{run}" is not; '
            "compare evaluations with evaluations, and runs with runs"
        )
    return _compare_evaluations(paths, args.out) if evaluations else _compare_runs(paths, args.out)


def _compare_runs(paths: Sequence[Path], out: Path | None) -> int:
    from freerun.cli.report_table import print_table
    from freerun.reports.compare import TERMINAL_COLUMNS, notes, read_groups, table_rows, write_comparison
    from freerun.reports.drawing import require_matplotlib
    from freerun.reports.groups import summarise

    if out:
        require_matplotlib()
    groups = read_groups(paths)
    print_table(TERMINAL_COLUMNS, table_rows(summarise(groups), TERMINAL_COLUMNS), notes(groups))
    _write(out, lambda out: write_comparison(groups, out), "compare.png, compare.csv and table.md")
    return 0


def _compare_evaluations(paths: Sequence[Path], out: Path | None) -> int:
    from freerun.cli.report_table import print_table
    from freerun.reports import evaluations as paired

    evaluations = paired.read_evaluations(paths)
    print_table(
        paired.EVALUATION_COLUMNS, paired.evaluation_rows(evaluations), paired.evaluation_notes(evaluations)
    )
    _write(out, lambda out: paired.write_evaluations(evaluations, out), "compare.csv and table.md")
    return 0


def _write(out: Path | None, write: Callable[[Path], None], files: str) -> None:
    if out is None:
        return
    try:
        write(out)
    except OSError as error:
        raise FreerunError(
            f'"{out}" cannot be written ({error.strerror or error}); name another with --out DIR'
        ) from error
    print(f"wrote {files} to {out}")


def _parser() -> Parser:
    description = "Compare runs, or evaluations, with 95 % intervals."
    parser = Parser("freerun compare", description, EPILOG, usage="DIR [DIR ...] [--out DIR]")
    parser.take("directories", "DIR", "runs, such as runs/demo, or results of freerun eval", nargs="+")
    parser.take("--out", "DIR", "write table.md, compare.csv and, for runs, curves")
    return parser
