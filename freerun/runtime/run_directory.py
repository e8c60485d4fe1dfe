"""The run directory, opened: a new one for a new run, an existing one only to resume it.

runs/<name>/
    config.toml     the resolved recipe
    store.sqlite    everything that happened
    checkpoints/    whole states of the run
    logs/           what each process printed
    reference/      the model of version 0, with objective.kl_coefficient > 0
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.config.load import dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import CheckpointError, ConfigError, FreerunError
from freerun.events.reader import RunReader
from freerun.events.schema import STORE_NAME
from freerun.model.adapter_directory import is_adapter
from freerun.model.companions import copy_companions
from freerun.runtime.checkpoint import Checkpoint, find_checkpoint, tidy_for_resume

CONFIG_FILE = "config.toml"


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def model(self) -> Path:
        """Config and tokenizer for every process of the run: the directory it started from may go away."""
        return self.path / "model"

    @property
    def reference(self) -> Path:
        """The policy of version 0, kept only where the objective has a KL term."""
        return self.path / "reference"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"


def open_run(recipe: Recipe, *, resume: bool) -> tuple[RunDirectory, Checkpoint | None]:
    """The run's directory and, to resume, its newest checkpoint (None: it was cut off before the first)."""
    run = RunDirectory(Path(recipe.run.directory) / recipe.run.name)
    if resume:
        return run, _resume(run, recipe)
    _make_room(run)
    run.path.mkdir(parents=True, exist_ok=True)
    # The config comes first: a directory that has one is ours, and may be cleared if the start fails.
    run.config.write_text(dump_toml(recipe))
    copy_companions(Path(recipe.model.path), run.model)
    return run, None


def _make_room(run: RunDirectory) -> None:
    """Clear away a run of this name that failed before its first step; anything else that is there stays."""
    if run.config.is_file():
        if not _is_unused(run):
            raise ConfigError(
                f'config: the run "{run.path}" exists; --resume continues it, --run.name NAME starts another'
            )
        shutil.rmtree(run.path)
    elif run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise ConfigError(
            f'config: "{run.path}" is there and is not a run (no config.toml); choose another --run.name or '
            "--run.directory"
        )


def _resume(run: RunDirectory, recipe: Recipe) -> Checkpoint | None:
    _check_same_run(recipe, load_recipe(run.config, []), run)
    checkpoint = find_checkpoint(run.checkpoints)
    if recipe.objective.kl_coefficient > 0 and checkpoint and checkpoint.state.version > 0:
        _check_reference(run)
    for damaged in tidy_for_resume(run.checkpoints, checkpoint):
        print(f"freerun: a damaged checkpoint was set aside as {damaged}", file=sys.stderr)
    run.config.write_text(dump_toml(recipe))
    return checkpoint


def _check_reference(run: RunDirectory) -> None:
    if not (run.reference / "config.json").is_file() and not is_adapter(run.reference):
        raise ConfigError(
            f'config: objective.kl_coefficient > 0 needs the policy of version 0, and "{run.reference}" is not '
            "there: the run was started without a KL term; resume it without one, or start another run"
        )


def recipe_to_resume(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The run's own recipe with this command's overrides: the file it was started from may have changed."""
    run = RunDirectory(Path(recipe.run.directory) / recipe.run.name)
    if not run.config.is_file():
        raise CheckpointError(f'there is no run "{run.path}" to resume; leave out --resume to start it')
    return load_recipe(run.config, overrides)


def _is_unused(run: RunDirectory) -> bool:
    """Whether a run failed before its first step, so that its name is free to be used again."""
    if run.checkpoints.exists():
        return False
    try:
        with RunReader(run.path) as reader:
            return not reader.steps() and reader.status().state != "running"
    except FreerunError:  # no store, or a damaged one: nothing that says it was never used
        return not (run.path / STORE_NAME).exists()


def _check_same_run(recipe: Recipe, saved: Recipe, run: RunDirectory) -> None:
    """Refuse to resume with settings that decide which prompt an ordinal is, or how large a batch is."""
    identity = {
        "run.seed": (recipe.run.seed, saved.run.seed),
        "data": (recipe.data, saved.data),
        "lora": (recipe.lora, saved.lora),
        "sampling.group_size": (recipe.sampling.group_size, saved.sampling.group_size),
        "train.prompts_per_step": (recipe.train.prompts_per_step, saved.train.prompts_per_step),
    }
    for key, (now, before) in identity.items():
        if now != before:
            raise ConfigError(
                f'config: {key} = {now} differs from the run\'s own {before} in "{run.config}"; '
                "a run is resumed with the data and batches it was started with"
            )
