"""The run directory, opened: a new one for a new run, an existing one only to resume it.

runs/<name>/
    config.toml     the resolved recipe
    store.sqlite    everything that happened
    checkpoints/    whole states of the run
    logs/           what each process printed
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from freerun.config.load import dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import CheckpointError, ConfigError
from freerun.model.companions import copy_companions
from freerun.runtime.checkpoint import Checkpoint, find_checkpoint

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
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"


def open_run(recipe: Recipe, *, resume: bool) -> tuple[RunDirectory, Checkpoint | None]:
    """The run's directory and, to resume, its newest checkpoint (None: it was cut off before the first)."""
    run = RunDirectory(Path(recipe.run.directory) / recipe.run.name)
    if resume:
        if not run.config.is_file():
            raise CheckpointError(f'there is no run "{run.path}" to resume; leave out --resume to start it')
        check_same_run(recipe, load_recipe(run.config, []), run)
        return run, find_checkpoint(run.checkpoints)
    if run.config.is_file():
        raise ConfigError(
            f'config: the run "{run.path}" exists; --resume continues it, --run.name NAME starts another'
        )
    copy_companions(Path(recipe.model.path), run.model)
    run.config.write_text(dump_toml(recipe))
    return run, None


def check_same_run(recipe: Recipe, saved: Recipe, run: RunDirectory) -> None:
    """Refuse to resume with settings that decide which prompt an ordinal is, or how large a batch is."""
    identity = {
        "run.seed": (recipe.run.seed, saved.run.seed),
        "data": (recipe.data, saved.data),
        "sampling.group_size": (recipe.sampling.group_size, saved.sampling.group_size),
        "train.prompts_per_step": (recipe.train.prompts_per_step, saved.train.prompts_per_step),
    }
    for key, (now, before) in identity.items():
        if now != before:
            raise ConfigError(
                f'config: {key} = {now} differs from the run\'s own {before} in "{run.config}"; '
                "a run is resumed with the data and batches it was started with"
            )
