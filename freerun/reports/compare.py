"""Runs side by side: groups over seeds, what each comes down to, and the files that say so.

run directories ─► records ─► groups ─┬─► table      on the terminal, table.md
                                      ├─► every value of every metric: compare.csv
                                      └─► curves     compare.png
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.errors import FreerunError
from freerun.events.accuracy import percent
from freerun.reports.drawing import draw_comparison
from freerun.reports.grouping import RunGroup, group_runs
from freerun.reports.intervals import Estimate, t_interval
from freerun.reports.record import RunNumbers, RunRecord, read_run
from freerun.reports.tables import accuracy_with_interval, escape_markdown, markdown, number, write_csv

HEADER = ("group", "seeds", "held-out", "CI over", "best", "tok/s", "seconds")
CAPTION = """
held-out: accuracy of the last evaluation with its 95 % interval, over seeds (Student's t) or, of a single seed,
over the prompts of its evaluation, as it was recorded; repeated runs of a seed count once, as their mean; best:
of the best evaluation, mean over seeds; tok/s: completion tokens trained on by seconds of training; seconds: of
training, without start-up and warm start.
"""
CSV_HEADER = ("group", "run", "seed", "step", "seconds", "trained_tokens", "metric", "value")
FIGURE_FILE, CSV_FILE, TABLE_FILE = "compare.png", "compare.csv", "table.md"


@dataclass(frozen=True)
class GroupSummary:
    """A group's line in the table."""

    group: RunGroup
    final_accuracy: Estimate
    interval_over: str
    """What the interval generalises to: seeds, or the prompts of the only run's evaluation."""
    best_accuracy: float
    tokens_per_second: float
    seconds: float


def read_groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Read the runs and group them; a run that is named twice would count as two seeds, so it is refused."""
    resolved = [path.resolve() for path in paths]
    for path, target in zip(paths, resolved, strict=True):
        if resolved.count(target) > 1:
            raise FreerunError(f'the run "{path}" is named more than once; name each run once')
    return group_runs([read_run(path) for path in paths])


def summarise(group: RunGroup) -> GroupSummary:
    """Means over the seeds of a group, each the mean of its runs; one seed has the interval of its evaluation."""
    numbers = [[record.numbers() for record in runs] for runs in group.by_seed.values()]
    final = _over_seeds(numbers, "final_accuracy")
    interval_over = f"{final.num} seeds" if final.has_interval else ""
    if final.num == 1:
        final, interval_over = _over_prompts(group)
    return GroupSummary(
        group=group,
        final_accuracy=final,
        interval_over=interval_over,
        best_accuracy=_over_seeds(numbers, "best_accuracy").mean,
        tokens_per_second=_over_seeds(numbers, "tokens_per_second").mean,
        seconds=_over_seeds(numbers, "seconds").mean,
    )


def _over_seeds(numbers: Sequence[Sequence[RunNumbers]], name: str) -> Estimate:
    return t_interval([t_interval([getattr(run, name) for run in runs]).mean for runs in numbers])


def _over_prompts(group: RunGroup) -> tuple[Estimate, str]:
    """The interval that the last evaluation was stored with; of repeated runs the mean of theirs."""
    rows = [row for record in group.records if (row := record.final_eval)]
    accuracy, low, high = (
        t_interval([getattr(row, name) for row in rows]).mean
        for name in ("accuracy", "accuracy_low", "accuracy_high")
    )
    num_prompts = rows[-1].num_prompts
    estimate = Estimate(accuracy, low, high, num_prompts)
    return estimate, f"{num_prompts} prompts" if estimate.has_interval else ""


def table_rows(groups: Sequence[RunGroup]) -> list[list[str]]:
    """The cells under `HEADER`; labels are as they came from files."""
    rows = []
    for summary in map(summarise, groups):
        group = summary.group
        repeats = len(group.records) - group.num_seeds
        rows.append(
            [
                group.label,
                f"{group.num_seeds}" + (f" (+{repeats} repeated)" if repeats else ""),
                accuracy_with_interval(summary.final_accuracy),
                summary.interval_over or "-",
                percent(summary.best_accuracy),
                number(summary.tokens_per_second, 0),
                number(summary.seconds, 1),
            ]
        )
    return rows


def notes(groups: Sequence[RunGroup]) -> list[str]:
    """What a reader must know before comparing: runs that did not get to their end."""
    return [
        f"{record.name} is {record.summary.state} at step {record.summary.version}/{record.summary.num_steps}"
        for record in (record for group in groups for record in group.records)
        if not record.is_finished
    ]


def csv_rows(groups: Sequence[RunGroup]) -> Iterator[tuple[object, ...]]:
    """One row per run, step and metric."""
    for group in groups:
        for record in group.records:
            yield from _rows_of(record, group.label)


def _rows_of(record: RunRecord, label: str) -> Iterator[tuple[object, ...]]:
    for metric in record.metric_names():
        for p in record.series(metric):
            yield label, record.name, record.seed, p.step, p.seconds, p.trained_tokens, metric, p.value


def write_comparison(groups: Sequence[RunGroup], directory: Path) -> None:
    """Write the table, every number and the figure."""
    directory.mkdir(parents=True, exist_ok=True)
    text = markdown(HEADER, table_rows(groups)) + CAPTION
    text += "".join(f"\nNote: {escape_markdown(note)}\n" for note in notes(groups))
    (directory / TABLE_FILE).write_text(text, encoding="utf-8")
    write_csv(directory / CSV_FILE, CSV_HEADER, csv_rows(groups))
    draw_comparison(groups, directory / FIGURE_FILE)
