"""Plans a study: a grid of settings and seeds, and the progress of each run. Nothing is run here.

    studies/<name>/
        warm/           the shared warm start, if the recipe has one
        runs/<name>/    a run directory for each combination of values and each seed
        logs/<name>.txt what each run printed
        table.md  study.png  study.csv  study.json

Runs are ordered by seed, so an unfinished study has every combination equally often. Progress is read from the run
directories alone. A run counts as finished only if its store says so and its settings are those of the study.
"""

import hashlib
import itertools
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from freerun.config.load import dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.config.values import as_toml
from freerun.data.tasks import check_task
from freerun.errors import ConfigError, FreerunError
from freerun.model.hub import local_directory
from freerun.reports.groups import RunGroup
from freerun.reports.record import RunRecord, by_dotted_key, read_config, read_run
from freerun.reward.graders import check_graders
from freerun.session.run_directory import CONFIG_FILE, RunDirectory, is_unused

WARM_NAME = "warm"
OWN_SECTIONS = ("model", "data", "lora", "sft")
"""Sections that affect a warm start: if one of these is studied, each run has its own warm start."""
DECIDED_BY_STUDY = {"run.name": "--out", "run.directory": "--out", "run.seed": "--seeds"}

Standing = Literal["to run", "to resume", "running", "finished"]


@dataclass(frozen=True)
class StudyRun:
    """One `freerun train`."""

    name: str
    values: tuple[str, ...]
    """Values of the studied keys, as given; empty for the shared warm start."""
    directory: Path
    log_file: Path
    recipe: Recipe
    arguments: tuple[str, ...]
    """Command-line arguments after `freerun`."""


@dataclass
class Study:
    """All runs of a study."""

    recipe_path: Path
    directory: Path
    over: dict[str, list[str]]
    """The studied keys and their values, as given."""
    num_seeds: int
    warm: StudyRun | None = None
    runs: list[StudyRun] = field(default_factory=list)

    @property
    def all_runs(self) -> list[StudyRun]:
        """All runs in the order in which they are run."""
        return [*([self.warm] if self.warm else []), *self.runs]

    def combinations(self) -> list[tuple[str, ...]]:
        """Every choice of one value for each key; the last key varies fastest."""
        return list(itertools.product(*self.over.values()))

    def label(self, values: Sequence[str]) -> str:
        return " ".join(f"{key}={value}" for key, value in zip(self.over, values, strict=True))


def plan_study(
    recipe_path: Path, overrides: Sequence[str], *, over: Sequence[str], num_seeds: int, directory: Path | None
) -> Study:
    """Plan all runs of the study. Every recipe of the grid is loaded, so a bad key or value is refused here."""
    keys = _parse_over(over)
    _check_keys(keys, overrides)
    if num_seeds < 1:
        raise ConfigError(f"--seeds {num_seeds} must be 1 or more")
    names = [_short_name(key, keys) for key in keys]
    directory = directory or Path("studies") / "-".join([recipe_path.stem, *names])
    study = Study(recipe_path, directory, keys, num_seeds)
    shared = list(overrides)
    is_shared = not any(key.partition(".")[0] in OWN_SECTIONS for key in keys)
    if is_shared and load_recipe(recipe_path, overrides).sft.is_on:
        # A run of no steps saves the warm-started model as its checkpoint of version 0.
        study.warm = _plan_run(study, WARM_NAME, (), 0, [*overrides, "--train.num_steps=0"])
        model = study.warm.directory / "checkpoints" / "step-0" / "model"
        shared += [f"--model.path={model}", "--sft.num_steps=0", "--sft.path=", "--sft.template="]
    for seed, values in itertools.product(range(num_seeds), study.combinations()):
        parts = [f"{name}-{_file_name(value)}" for name, value in zip(names, values, strict=True)]
        own = [f"--{key}={value}" for key, value in zip(keys, values, strict=True)]
        study.runs.append(_plan_run(study, "-".join([*parts, f"seed-{seed}"]), values, seed, [*shared, *own]))
    _check_values(study)
    for run in study.runs[: len(study.combinations())]:  # of the first seed: data and graders are cheap to check
        for part in run.recipe.data.parts.values():
            check_task(part)
        check_graders(run.recipe.reward)
    return study


def _plan_run(study: Study, name: str, values: tuple[str, ...], seed: int, overrides: Sequence[str]) -> StudyRun:
    place = study.directory / "runs" if name != WARM_NAME else study.directory
    where = [f"--run.directory={place}", f"--run.name={name}", f"--run.seed={seed}"]
    return StudyRun(
        name=name,
        values=values,
        directory=place / name,
        log_file=study.directory / "logs" / f"{name}.txt",
        recipe=load_recipe(study.recipe_path, [*overrides, *where]),
        arguments=("train", str(study.recipe_path), *overrides, *where),
    )


def _parse_over(over: Sequence[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for text in over:
        key, _, listed = text.partition("=")
        values = re.findall(r"(?:\[[^\]]*\]|[^,])+", listed)  # a comma inside brackets belongs to an array
        if not values:
            raise ConfigError(f'--over "{text}" must be KEY=VALUE,VALUE, such as buffer.max_staleness=0,4')
        if key in keys:
            raise ConfigError(f"--over {key} is given twice; list all its values once: --over {key}=VALUE,VALUE")
        keys[key] = values
    return keys


def _check_keys(keys: dict[str, list[str]], overrides: Sequence[str]) -> None:
    given = [override.removeprefix("--").partition("=")[0] for override in overrides if override.startswith("--")]
    for key in [*keys, *given]:
        if key in DECIDED_BY_STUDY:
            raise ConfigError(f"{key} is decided by the study; use {DECIDED_BY_STUDY[key]} instead")
        if key in keys and key in given:
            raise ConfigError(f"{key} is given twice, as an override and with --over; leave one of them out")


def _check_values(study: Study) -> None:
    """Raise for two values that mean the same, such as 1e-5 and 0.00001."""
    for place, (key, values) in enumerate(study.over.items()):
        found: dict[str, str] = {}
        for value in values:
            run = next(run for run in study.runs if run.values[place] == value)
            meaning = as_toml(_settings(run.recipe).get(key))
            if meaning in found or values.count(value) > 1:
                raise ConfigError(f"--over {key}: {found.get(meaning, value)} and {value} are the same value")
            found[meaning] = value


def _short_name(key: str, keys: dict[str, list[str]]) -> str:
    """`max_staleness` for `buffer.max_staleness`, if no other studied key ends like that."""
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in keys) > 1 else last


def _file_name(value: str) -> str:
    """The value as part of a file name; a long or unusual one is cut and made unique by its hash."""
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "_", value)[:24]
    return plain if plain == value else f"{plain}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"


def state_of(run: StudyRun) -> Standing:
    """What is left to do for a run; raises for a directory with steps of a run with other settings."""
    if not (run.directory / CONFIG_FILE).is_file():
        return "to run"
    state, difference = _recorded_state(run), _difference(run)
    if state == "running":
        return "running"
    if difference and is_unused(RunDirectory(run.directory)):
        return "to run"  # it failed before its first step, and the command has been corrected
    if difference:
        raise FreerunError(
            f'the run "{run.directory}" was made with {difference}; give this study another directory with --out'
        )
    return "finished" if state == "finished" else "to resume"


def _recorded_state(run: StudyRun) -> str:
    try:
        return read_run(run.directory).summary.state
    except FreerunError:  # it did not get far enough to have a store
        return "crashed"


def finished_groups(study: Study) -> list[RunGroup]:
    """The finished runs of each combination of values; a group may be empty."""
    records = {run.name: read_run(run.directory) for run in study.runs if state_of(run) == "finished"}

    def records_of(values: tuple[str, ...]) -> list[RunRecord]:
        return [records[run.name] for run in study.runs if run.values == values and run.name in records]

    label = study.recipe_path.stem
    return [RunGroup(study.label(values) or label, records_of(values)) for values in study.combinations()]


def find_failures(study: Study) -> dict[str, str]:
    """The reason for each run that was tried and failed."""
    return {run.name: why_it_ended(run) for run in study.all_runs if _has_failed(run)}


def why_it_ended(run: StudyRun) -> str:
    """The recorded reason for the end of a run, else the last line it printed."""
    try:
        reason = read_run(run.directory).summary.reason
    except FreerunError:
        reason = ""
    lines = run.log_file.read_text(errors="replace").strip().splitlines() if run.log_file.is_file() else []
    return reason or (lines[-1].removeprefix("freerun: ") if lines else "it ended without a message")


def _has_failed(run: StudyRun) -> bool:
    return run.log_file.is_file() and _recorded_state(run) in ("failed", "crashed")


def _difference(run: StudyRun) -> str:
    """The first setting in which the run on disk differs from the study's; empty if there is none."""
    saved, wanted = read_config(run.directory), _settings(run.recipe)
    for key in sorted((saved.keys() | wanted.keys()) - {"run.directory"}):  # it is here, by any path
        found, asked = (_comparable(key, values.get(key)) for values in (saved, wanted))
        if found != asked:
            return f"{key} = {as_toml(found)}, not {as_toml(asked)}"
    return ""


def _settings(recipe: Recipe) -> dict[str, Any]:
    return by_dotted_key(tomllib.loads(dump_toml(recipe)))


def _comparable(key: str, value: Any) -> Any:
    return str(Path(local_directory(value)).resolve()) if key == "model.path" and value else value
