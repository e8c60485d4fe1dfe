"""A staleness study, planned: which runs, in which order, with which settings. Nothing is run here.

    <study>/
        warm/           the warm start, once for all runs, if the recipe has one
        runs/<name>/    one run directory per condition and seed
        logs/<name>.txt what each run printed
        study.json  study.csv  table.md  study.png

Seed by seed, all conditions of one before the next, so that a study that is not finished is still balanced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import ConfigError

WARM_NAME = "warm"
CORRECTIONS = {"naive": "none", "decoupled": "decoupled"}
DECIDED_BY_STUDY = ("run.name", "run.directory", "run.seed", "buffer.max_staleness", "objective.correction",
                    "objective.preset")  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """What is varied."""

    eta: str
    """As it was asked for: a whole number, or "inf"."""
    objective: str


@dataclass(frozen=True)
class StudyRun:
    """One `freerun train`, and the recipe it comes to."""

    name: str
    condition: Condition
    seed: int
    directory: Path
    """The run's own."""
    overrides: list[str]
    recipe: Recipe


@dataclass(frozen=True)
class Study:
    """Everything that is to be run."""

    recipe_path: Path
    directory: Path
    recipe: Recipe
    """As the command gave it, before a condition."""
    etas: list[str]
    objectives: list[str]
    seeds: list[int]
    warm: StudyRun | None
    runs: list[StudyRun]

    @property
    def all_runs(self) -> list[StudyRun]:
        """In the order in which they are run."""
        return [*([self.warm] if self.warm else []), *self.runs]

    def log_file(self, run: StudyRun) -> Path:
        return self.directory / "logs" / f"{run.name}.txt"


def plan_staleness(
    recipe_path: Path,
    overrides: Sequence[str],
    *,
    etas: Sequence[str],
    objectives: Sequence[str],
    num_seeds: int,
    directory: Path,
) -> Study:
    """All runs of the study, each with its recipe checked."""
    _check(etas, objectives, num_seeds, overrides)
    recipe = load_recipe(recipe_path, overrides)
    shared, warm = list(overrides), None
    if recipe.warm_start.num_steps:
        warm = _warm_start(recipe_path, overrides, directory)
        # The controller saves a warm-started model as version 0 before anything else.
        model = warm.directory / "checkpoints" / "step-0" / "model"
        shared += ["--model.path", str(model), "--warm_start.num_steps", "0"]
    runs = [
        _plan_run(recipe_path, shared, Condition(eta, objective), seed, recipe, directory)
        for seed in range(num_seeds)
        for eta in etas
        for objective in objectives
    ]
    return Study(
        recipe_path=recipe_path, directory=directory, recipe=recipe, etas=list(etas), objectives=list(objectives),
        seeds=list(range(num_seeds)), warm=warm, runs=runs,
    )  # fmt: skip


def objective_overrides(name: str) -> list[str]:
    """The paper's two objectives by their names there; any other name is a preset of the recipe's."""
    if name in CORRECTIONS:
        return ["--objective.correction", CORRECTIONS[name]]
    return ["--objective.preset", name]


def max_staleness_of(eta: str, num_steps: int) -> int:
    """The bound for an eta; no trajectory can be older than the run has steps, so that many is no bound."""
    return num_steps if eta == "inf" else int(eta)


def _plan_run(
    recipe_path: Path, shared: Sequence[str], condition: Condition, seed: int, recipe: Recipe, directory: Path
) -> StudyRun:
    name = f"eta-{condition.eta}-{condition.objective}-seed-{seed}"
    max_staleness = max_staleness_of(condition.eta, recipe.train.num_steps)
    overrides = [*shared, "--buffer.max_staleness", str(max_staleness)]
    overrides += [*objective_overrides(condition.objective), *_place(directory / "runs", name, seed)]
    own_recipe = load_recipe(recipe_path, overrides)
    return StudyRun(name, condition, seed, directory / "runs" / name, overrides, own_recipe)


def _warm_start(recipe_path: Path, overrides: Sequence[str], directory: Path) -> StudyRun:
    """A run of no steps: it ends with the warm-started model as its checkpoint of version 0."""
    own = [*overrides, "--train.num_steps", "0", *_place(directory, WARM_NAME, 0)]
    recipe = load_recipe(recipe_path, own)
    return StudyRun(WARM_NAME, Condition("", ""), 0, directory / WARM_NAME, own, recipe)


def _place(directory: Path, name: str, seed: int) -> list[str]:
    return ["--run.directory", str(directory), "--run.name", name, "--run.seed", str(seed)]


def _check(etas: Sequence[str], objectives: Sequence[str], num_seeds: int, overrides: Sequence[str]) -> None:
    for eta in etas:
        if eta != "inf" and not re.fullmatch(r"[0-9]{1,9}", eta):
            raise ConfigError(f'--eta "{eta}" must be a whole number of versions, or inf')
    for option, values in (("--eta", etas), ("--objective", objectives)):
        if len(set(values)) < len(values):
            raise ConfigError(f"{option} {' '.join(values)} names a value twice; name each once")
    if num_seeds < 1:
        raise ConfigError(f"--seeds {num_seeds} must be 1 or more")
    given = [override.removeprefix("--").partition("=")[0] for override in overrides if override.startswith("--")]
    for key in given:
        if key in DECIDED_BY_STUDY:
            raise ConfigError(f"--{key} is decided by the study; use --eta, --objective, --seeds or --out instead")
