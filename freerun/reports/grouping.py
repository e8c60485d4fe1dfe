"""Runs that differ only in their seed are one curve; groups are told apart by the settings in which they differ.

runs/a  seed 0, buffer.max_staleness 4 ─┐
runs/b  seed 1, buffer.max_staleness 4 ─┴─► "buffer.max_staleness=4"    2 seeds
runs/c  seed 0, buffer.max_staleness 0 ───► "buffer.max_staleness=0"    1 seed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freerun.config.load import as_toml
from freerun.reports.record import RunRecord

NOT_A_SETTING = ("run.seed", "run.name", "run.directory")
PRESET_KEY = "objective.preset"
MAX_LABEL_KEYS = 4
"""With more differences a list of them is no longer a label: the group takes the name of its first run."""


@dataclass(frozen=True)
class RunGroup:
    """Runs of one setting, with different seeds."""

    label: str
    """Values come from files: escape it for whatever shows it."""
    records: list[RunRecord]

    @property
    def num_seeds(self) -> int:
        return len(self.by_seed)

    @property
    def by_seed(self) -> dict[int, list[RunRecord]]:
        """The runs of each seed: a seed that was run again says little more than it did at first."""
        runs: dict[int, list[RunRecord]] = {}
        for record in self.records:
            runs.setdefault(record.seed, []).append(record)
        return runs


def group_runs(records: Sequence[RunRecord]) -> list[RunGroup]:
    """The groups in the order in which their first runs were given."""
    members: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for record in records:
        members.setdefault(_identity(record), []).append(record)
    settings = [dict(identity) for identity in members]
    differing = [key for key in _all_keys(settings) if len({_value(s, key) for s in settings}) > 1]
    if len({_value(s, PRESET_KEY) for s in settings}) == len(settings) > 1:
        differing = [PRESET_KEY]  # which brings the other differences of the objective with it
    is_short = 0 < len(differing) <= MAX_LABEL_KEYS
    names = _distinct_names([group[0] for group in members.values()])
    return [
        RunGroup(" ".join(f"{key}={_value(setting, key)}" for key in differing) if is_short else name, group)
        for setting, name, group in zip(settings, names, members.values(), strict=True)
    ]


def _identity(record: RunRecord) -> tuple[tuple[str, str], ...]:
    settings = sorted(record.config.items(), key=lambda item: item[0])
    return tuple((key, _plain(value)) for key, value in settings if key not in NOT_A_SETTING)


def _plain(value: Any) -> str:
    """The value as TOML writes it; words go without their quotes."""
    text = as_toml(value)
    is_word = isinstance(value, str) and value != "" and text == f'"{value}"' and " " not in value
    return value if is_word else text


def _all_keys(settings: Sequence[dict[str, str]]) -> list[str]:
    return sorted({key for setting in settings for key in setting})


def _value(setting: dict[str, str], key: str) -> str:
    return setting.get(key, "(unset)")


def _distinct_names(records: Sequence[RunRecord]) -> list[str]:
    names = [record.name for record in records]
    return names if len(set(names)) == len(names) else [str(record.path) for record in records]
