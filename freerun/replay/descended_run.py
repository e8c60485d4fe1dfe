"""Creates the directory of a run that descends from another run: its files and its record up to a version.

    config.toml, model/, reference/, data.jsonl      as in the other run
    store.sqlite                                     the steps up to the version; later ones are not in it

The directory appears complete or not at all, under a name that was free.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError, FreerunError
from freerun.events.reader import RunReader
from freerun.events.store_copy import copy_store
from freerun.session.build import make_source
from freerun.session.run_directory import DATA_FILE, RunDirectory, check_vacant, write_config


def check_name(run: RunDirectory) -> None:
    """Raise if the directory exists."""
    check_vacant(run, is_locked=False)
    if run.path.exists():
        raise ConfigError(f'config: "{run.path}" is there; choose another run.name')


@contextmanager
def descended_run(
    origin: RunDirectory, run: RunDirectory, recipe: Recipe, *, version: int, seconds: float
) -> Iterator[RunDirectory]:
    """Yield the directory under a temporary name, to be completed; it is renamed when the block ends."""
    check_name(run)
    temporary = RunDirectory(run.path.with_name(f".{run.path.name}.{os.getpid()}.tmp"))
    try:
        temporary.path.mkdir(mode=0o700, parents=True)
        write_config(temporary, recipe)
        shutil.copytree(origin.model, temporary.model)
        if origin.reference.is_dir():
            shutil.copytree(origin.reference, temporary.reference)
        if (origin.path / DATA_FILE).is_file():
            shutil.copyfile(origin.path / DATA_FILE, temporary.path / DATA_FILE)
        copy_store(origin.path, temporary.path, version=version, seconds=seconds)
        yield temporary
        temporary.path.rename(run.path)
    except OSError as error:
        raise FreerunError(
            f'the run "{run.path}" could not be made of "{origin.path}" ({error}); free disk space, or choose '
            "another run.directory"
        ) from error
    finally:
        shutil.rmtree(temporary.path, ignore_errors=True)


def with_own_rows(recipe: Recipe, origin: RunDirectory, run: RunDirectory) -> Recipe:
    """The recipe with the new run's own copy of rows that a program passed."""
    path = Path(recipe.data.path) if recipe.data.path else None
    if path is None or path.resolve() != (origin.path / DATA_FILE).resolve():
        return recipe
    data = dataclasses.replace(recipe.data, path=str(run.path / DATA_FILE))
    return dataclasses.replace(recipe, data=data)


def data_fingerprint(origin: RunDirectory, recipe: Recipe) -> str:
    """Fingerprint of the run's ordered prompts; raises if the data has changed since."""
    source = make_source(recipe, Tokenizer.load(origin.model))
    if recipe.online.is_on:
        return source.fingerprint
    with RunReader(origin.path) as reader:
        bounds = reader.step_range() or (1, 0)
        rows = [row for version in set(bounds) for row in reader.trajectories(version)]
    for row in rows:
        if source.at(row.ordinal).text != row.prompt and not recipe.rollout.runs_sessions:
            raise FreerunError(
                f"prompt {row.ordinal} ({row.key}) is not the one in the run's data now; restore the data"
            )
    return source.fingerprint
