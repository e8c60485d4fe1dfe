"""Tasks by name: where problems come from, and what a task can do beyond that.

Only this module knows the list of tasks; each is one file. A task with its own alphabet can be learned by a
model made from nothing, one with demonstrations can warm it up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from freerun.config.data import DataConfig
from freerun.data import euclid, jsonl, times_tables
from freerun.data.problem import Problem, Problems, in_hash_order, split
from freerun.errors import ConfigError, ModelError

__all__ = ["Problem", "Problems", "alphabet_of", "demonstrations_of", "load_problems"]

_ALPHABETS = {"euclid": euclid.ALPHABET}
_TASKS_WITH_DEMONSTRATIONS = ("euclid",)


def load_problems(config: DataConfig) -> Problems:
    """The task's problems, split into those for training and those held out."""
    if config.task == "jsonl" and config.held_out_path:
        return Problems(
            training=jsonl.read(Path(config.path), config),
            held_out=in_hash_order(jsonl.read(Path(config.held_out_path), config)),
        )
    return split(_all_problems(config), held_out_fraction=config.held_out_fraction)


def _all_problems(config: DataConfig) -> Iterator[Problem]:
    match config.task:
        case "times-tables":
            yield from times_tables.problems()
        case "euclid":
            yield from euclid.problems(config.max_number)
        case "jsonl":
            yield from jsonl.read(Path(config.path), config)


def alphabet_of(task: str) -> str:
    """The characters a task's prompts and answers are made of."""
    if task not in _ALPHABETS:
        raise ModelError(
            f'task "{task}" has no alphabet of its own, so no model can be made for it; '
            f"set model.path to a model directory, or data.task to {_quoted(_ALPHABETS)}"
        )
    return _ALPHABETS[task]


def demonstrations_of(config: DataConfig, *, seed: int, error_rate: float) -> Iterator[tuple[str, str]]:
    """Endless (prompt text, completion text) of training problems; the same seed gives the same ones."""
    if config.task not in _TASKS_WITH_DEMONSTRATIONS:
        raise ConfigError(
            f'config: data.task = "{config.task}" has no demonstrations; set warm_start.num_steps = 0, '
            f"or data.task to {_quoted(_TASKS_WITH_DEMONSTRATIONS)}"
        )
    return _demonstrations(load_problems(config).training, random.Random(seed), error_rate)


def _demonstrations(
    training: tuple[Problem, ...], rng: random.Random, error_rate: float
) -> Iterator[tuple[str, str]]:
    while True:
        for problem in rng.sample(training, len(training)):
            yield problem.text, euclid.demonstration(problem, rng, error_rate)


def _quoted(names: dict[str, str] | tuple[str, ...]) -> str:
    return " or ".join(f'"{name}"' for name in names)
