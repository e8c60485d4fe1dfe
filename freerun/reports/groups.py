"""Groups runs that differ only in their seed, and names each group by the settings in which the groups differ.

runs/a  seed 0, buffer.max_staleness 4 ─┐
runs/b  seed 1, buffer.max_staleness 4 ─┴─► "buffer.max_staleness=4"    2 seeds
runs/c  seed 0, buffer.max_staleness 0 ───► "buffer.max_staleness=0"    1 seed

Groups are compared with the first one seed by seed: runs of one seed see the same prompts in the same order, so
shared noise cancels in a difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freerun.config.load import PRESET_KEY
from freerun.config.values import as_toml
from freerun.events.pass_at_k import Estimate
from freerun.reports.intervals import mean, t_interval
from freerun.reports.record import RunRecord

NOTHING = Estimate(math.nan, math.nan, math.nan)
NOT_A_SETTING = ("run.seed", "run.name", "run.directory", "report.")
"""Keys, or sections with a dot at the end, that do not change what a run computes."""
MAX_LABEL_KEYS = 4
"""Groups that differ in more keys are named after their first run instead."""


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same settings and different seeds."""

    label: str
    """The label may contain text from files: escape it for display."""
    records: list[RunRecord]

    @property
    def by_seed(self) -> dict[int, list[RunRecord]]:
        """The runs of each seed: repetitions of a seed are not independent."""
        runs: dict[int, list[RunRecord]] = {}
        for record in self.records:
            runs.setdefault(record.seed, []).append(record)
        return runs

    def over_seeds(self, name: str) -> dict[int, float]:
        """One number per seed: the mean over the runs of that seed."""
        return {seed: mean(run.numbers.get(name, math.nan) for run in runs) for seed, runs in self.by_seed.items()}

    def estimate(self, name: str) -> Estimate:
        return t_interval([*self.over_seeds(name).values()])


@dataclass(frozen=True)
class GroupSummary:
    """A group's line in the table."""

    label: str
    num_seeds: int
    num_repeats: int
    """Number of runs whose seed another run already has."""
    interval_over: str
    """The basis of the final accuracy's interval: seeds, or the prompts of a single seed's evaluation."""
    difference: Estimate
    """Final accuracy minus that of the first group, paired by seed."""
    speedup: Estimate
    """Tokens per second relative to the first group, paired by seed."""
    staleness_max: float
    """The largest value of any run."""
    estimates: dict[str, Estimate]
    """Means over seeds of all numbers of the runs."""

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates.get(name, NOTHING)


def group_runs(records: Sequence[RunRecord]) -> list[RunGroup]:
    """The groups, in the order of their first runs."""
    members: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for record in records:
        settings = sorted((key, _plain(value)) for key, value in record.config.items() if not _is_no_setting(key))
        members.setdefault(tuple(settings), []).append(record)
    labels = _labels([dict(settings) for settings in members]) or _names([runs[0] for runs in members.values()])
    return [RunGroup(label, runs) for label, runs in zip(labels, members.values(), strict=True)]


def summarise(groups: Sequence[RunGroup]) -> list[GroupSummary]:
    """One line per group; the first group is the baseline of the others."""
    return [_summarise(group, groups[0]) for group in groups]


def _summarise(group: RunGroup, first: RunGroup) -> GroupSummary:
    estimates = {name: group.estimate(name) for name in dict.fromkeys(n for r in group.records for n in r.numbers)}
    num_known = sum(map(math.isfinite, group.over_seeds("final_accuracy").values()))
    interval_over = f"{num_known} seeds" if num_known > 1 else ""
    if num_known == 1:
        estimates["final_accuracy"], interval_over = _over_prompts(group)
    return GroupSummary(
        label=group.label,
        num_seeds=len(group.by_seed),
        num_repeats=len(group.records) - len(group.by_seed),
        interval_over=interval_over,
        difference=NOTHING if group is first else t_interval([*differences(group, first).values()]),
        speedup=NOTHING if group is first else t_interval([*speedups(group, first).values()]),
        staleness_max=max(
            (n for r in group.records if math.isfinite(n := r.numbers["staleness_max"])), default=math.nan
        ),
        estimates=estimates,
    )


def _over_prompts(group: RunGroup) -> tuple[Estimate, str]:
    """The interval recorded with the last evaluation; for repeated runs the mean of theirs."""
    rows = [row for record in group.records if (row := record.final_eval)]
    names = ("accuracy", "accuracy_low", "accuracy_high")
    estimate = Estimate(*(mean(getattr(row, name) for row in rows) for name in names))
    return estimate, f"{rows[-1].num_prompts} prompts" if estimate.has_interval else ""


def differences(group: RunGroup, baseline: RunGroup) -> dict[int, float]:
    """Final accuracy minus that of the baseline, for each seed that both have."""
    ours, theirs = (each.over_seeds("final_accuracy") for each in (group, baseline))
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def speedups(group: RunGroup, baseline: RunGroup) -> dict[int, float]:
    """Tokens per second over those of the baseline, for each seed that both have."""
    ours, theirs = (each.over_seeds("tokens_per_second") for each in (group, baseline))
    return {seed: ours[seed] / theirs[seed] if theirs[seed] else math.nan for seed in ours if seed in theirs}


def _labels(groups: Sequence[dict[str, str]]) -> list[str]:
    """The settings that distinguish each group; empty if there are none, or too many for a label."""

    def value(group: dict[str, str], key: str) -> str:
        return group.get(key, "(unset)")

    keys = sorted({key for group in groups for key in group})
    differing = [key for key in keys if len({value(group, key) for group in groups}) > 1]
    if len({value(group, PRESET_KEY) for group in groups}) == len(groups) > 1:
        differing = [PRESET_KEY]  # the preset implies the other differences of the objective
    if not 0 < len(differing) <= MAX_LABEL_KEYS:
        return []
    return [" ".join(f"{key}={value(group, key)}" for key in differing) for group in groups]


def _plain(value: Any) -> str:
    """The value as in TOML, but strings without quotes."""
    text = as_toml(value)
    is_word = isinstance(value, str) and value != "" and text == f'"{value}"' and " " not in value
    return value if is_word else text


def _names(records: Sequence[RunRecord]) -> list[str]:
    names = [record.name for record in records]
    return names if len(set(names)) == len(names) else [str(record.path) for record in records]


def _is_no_setting(key: str) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in NOT_A_SETTING)
