"""Compares runs: seeds are grouped, one line per group, with the files that contain the comparison.

run directories ─► records ─► groups ─┬─► table      on the terminal, table.md
                                      ├─► every value of every metric: compare.csv
                                      └─► curves     compare.png
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from freerun.errors import FreerunError
from freerun.events.accuracy import UNKNOWN, percent
from freerun.reports.drawing import draw_comparison
from freerun.reports.groups import GroupSummary, RunGroup, group_runs, summarise
from freerun.reports.record import read_run
from freerun.reports.tables import CSV_FILE, TABLE_FILE, number, points, with_interval, write_csv, write_table

CAPTION = """
held-out: accuracy of the last evaluation, with its 95 % interval over seeds (Student's t) or, for a single seed,
over the prompts of that evaluation. difference: from the first group, in percentage points, paired by seed. best:
the best evaluation of each run. tok/s: completion tokens trained on per second of training. speed: tok/s over that
of the first group, paired by seed. seconds: of training, without start-up and warm start. staleness: of the
trajectories trained on; buffer.max_staleness only bounds it. clipped: share of tokens held back by the trust
region. effective sample size: of the behaviour weights, 1 is on-policy. Repeated runs of a seed count once, as
their mean.
"""
CSV_HEADER = ("group", "run", "seed", "step", "seconds", "trained_tokens", "metric", "value")
FIGURE_FILE = "compare.png"


COLUMNS: dict[str, Callable[[GroupSummary], str]] = {
    "group": lambda s: s.label,
    "seeds": lambda s: f"{s.num_seeds}" + (f" (+{s.num_repeats} repeated)" if s.num_repeats else ""),
    "held-out": lambda s: with_interval(s["final_accuracy"], percent),
    "CI over": lambda s: s.interval_over or UNKNOWN,
    "difference": lambda s: with_interval(s.difference, points),
    "best": lambda s: with_interval(s["best_accuracy"], percent),
    "tok/s": lambda s: with_interval(s["tokens_per_second"], number(0)),
    "speed": lambda s: with_interval(s.speedup, number(2)),
    "seconds": lambda s: number(1)(s["seconds"].value),
    "staleness": lambda s: number(2)(s["staleness_mean"].value),
    "max staleness": lambda s: number(0)(s.staleness_max),
    "clipped": lambda s: number(4)(s["clip_fraction"].value),
    "effective sample size": lambda s: number(3)(s["effective_sample_size"].value),
}
TERMINAL_COLUMNS = ("group", "seeds", "held-out", "CI over", "difference", "tok/s", "seconds")


def read_groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Read the runs and group them."""
    check_distinct(paths)
    return group_runs([read_run(path) for path in paths])


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise if a directory is named twice: it would count as two runs."""
    resolved = [path.resolve() for path in paths]
    for path, target in zip(paths, resolved, strict=True):
        if resolved.count(target) > 1:
            raise FreerunError(f'"{path}" is named more than once; name each directory once')


def table_rows(summaries: Sequence[GroupSummary], columns: Sequence[str] = tuple(COLUMNS)) -> list[list[str]]:
    return [[COLUMNS[column](summary) for column in columns] for summary in summaries]


def notes(groups: Sequence[RunGroup]) -> list[str]:
    """Runs that did not finish."""
    return [
        f"{record.name} is {record.summary.state} at step {record.summary.version}/{record.summary.num_steps}"
        for record in (record for group in groups for record in group.records)
        if not record.is_finished
    ]


def csv_rows(groups: Sequence[RunGroup]) -> Iterator[tuple[object, ...]]:
    """One row per run, step and metric."""
    for group in groups:
        for run in group.records:
            for metric in run.metric_names():
                for p in run.series(metric):
                    yield group.label, run.name, run.seed, p.step, p.seconds, p.trained_tokens, metric, p.value


def write_comparison(groups: Sequence[RunGroup], directory: Path) -> None:
    """Write the table, every number and the figure."""
    directory.mkdir(parents=True, exist_ok=True)
    write_table(directory / TABLE_FILE, [*COLUMNS], table_rows(summarise(groups)), CAPTION, notes(groups))
    write_csv(directory / CSV_FILE, CSV_HEADER, csv_rows(groups))
    draw_comparison(groups, directory / FIGURE_FILE)
