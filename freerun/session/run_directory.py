"""The run directory, opened: a new one for a new run, an existing one only to resume it.

runs/<name>/
    lock            held by the process that runs it
    config.toml     the resolved recipe
    data.jsonl      the rows that a program passed to freerun.train
    store.sqlite    everything that happened
    checkpoints/    whole states of the run
    logs/           what each process printed
    reference/      the model of version 0, with objective.kl_coefficient > 0
"""

import dataclasses
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path

from freerun.config.load import dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.config.shipped import shipped_recipes
from freerun.controller.checkpoint import Checkpoint, find_checkpoint, restore_replaced, tidy_for_resume
from freerun.controller.manifest import replace_file
from freerun.errors import CheckpointError, ConfigError, FreerunError
from freerun.events.reader import RunReader
from freerun.events.schema import STORE_NAME, StoreError
from freerun.events.session_rows import recorded_sessions
from freerun.model.adapter_directory import is_adapter
from freerun.model.companions import copy_companions
from freerun.session.run_lock import LOCK_FILE, locked

CONFIG_FILE = "config.toml"
DATA_FILE = "data.jsonl"
HOW_TO_RESUME = "--resume (in Python resume=True) continues it"


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG_FILE
        self.model = path / "model"
        """Config and tokenizer for every process of the run: the directory it started from may be removed."""
        self.reference = path / "reference"
        """The policy of version 0, kept only if the objective has a KL term."""
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"


@contextmanager
def open_run(recipe: Recipe, *, resume: bool) -> Iterator[tuple[RunDirectory, Checkpoint | None]]:
    """Open and lock the run's directory; yields it with the checkpoint to resume (None: none was written yet).

    Nothing is changed before the lock is held and all checks have passed.
    """
    run = RunDirectory(Path(recipe.run.directory) / recipe.run.name)
    with ExitStack() as stack:
        try:
            if not resume:
                check_vacant(run, is_locked=False)  # before locking too: a refusal must leave no file behind
                run.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # prompts and completions are private
            stack.enter_context(locked(run.path))
            checkpoint: Checkpoint | None = None
            if resume:
                checkpoint = _resume(run, recipe)
            else:
                _start(run, recipe)
        except OSError as error:
            raise ConfigError(
                f'config: the run directory "{run.path}" cannot be used ({error.strerror or error}); '
                "choose another run.directory or run.name"
            ) from error
        yield run, checkpoint


def _start(run: RunDirectory, recipe: Recipe) -> None:
    check_vacant(run, is_locked=True)
    if run.config.is_file():  # left by a run that failed before its first step
        _clear(run.path)
    # Write the config first: a directory with a config is ours, and may be cleared if the start fails.
    write_config(run, recipe)
    copy_companions(Path(recipe.model.path), run.model)


def check_vacant(run: RunDirectory, *, is_locked: bool) -> None:
    """Refuse a directory that holds a run with steps, or anything that is not a run."""
    if run.config.is_file():
        if not is_unused(run):
            raise ConfigError(f'config: the run "{run.path}" exists; {HOW_TO_RESUME}, or choose another run.name')
        return
    try:
        names = {path.name for path in run.path.iterdir()}
    except FileNotFoundError:
        return  # free; checked once, since another start may create it at any time
    except NotADirectoryError:
        if not run.path.exists():
            return  # below a file: making the directory raises the error
        names = {run.path.name}
    if LOCK_FILE in names and not is_locked:
        return  # being started by another process: the lock shows it
    if names - {LOCK_FILE}:
        raise ConfigError(
            f'config: "{run.path}" exists but is not a run (no config.toml); choose another run.name or '
            "run.directory"
        )


def _clear(directory: Path) -> None:
    """Empty the directory, except for the lock that this process holds."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()


def write_config(run: RunDirectory, recipe: Recipe) -> None:
    """Write the recipe atomically: the run could not be resumed without it.

    A resumed run calls this once its recipe is accepted: the next --resume starts from it.
    """
    try:
        replace_file(run.config, dump_toml(recipe).encode())
    except OSError as error:
        raise ConfigError(f'config: "{run.config}" cannot be written ({error.strerror or error})') from error


def keep_rows(run: RunDirectory, rows: bytes, *, resume: bool) -> None:
    """Write the rows of a new run; a resumed run must be given the rows it was started with."""
    path = run.path / DATA_FILE
    try:
        if not resume:
            replace_file(path, rows)
        elif path.read_bytes() != rows:
            raise ConfigError(
                f'config: the rows of data differ from those in "{path}"; a run is resumed with the data it was '
                "started with: pass the same, or none"
            )
    except OSError as error:
        raise ConfigError(f'config: "{path}" cannot be used ({error.strerror or error})') from error


def _resume(run: RunDirectory, recipe: Recipe) -> Checkpoint | None:
    check_same_run(recipe, load_recipe(run.config, []), run)
    restore_replaced(run.checkpoints)
    found = find_checkpoint(run.checkpoints)
    checkpoint = found.checkpoint
    if checkpoint is not None:
        _check_resumable(run, recipe, checkpoint)
    else:
        _check_own_start(run)
    set_aside = tidy_for_resume(run.checkpoints, checkpoint)
    for damaged, reason in zip(set_aside, reversed(found.damage), strict=False):
        print(f"freerun: a damaged checkpoint was set aside as {damaged} ({reason})", file=sys.stderr)
    return checkpoint


def _check_resumable(run: RunDirectory, recipe: Recipe, checkpoint: Checkpoint) -> None:
    if not checkpoint.has_optimizer:
        raise CheckpointError(
            f"{checkpoint.directory}: its optimizer was dropped when the run had finished "
            f"(checkpoint.keep_optimizer = false), so the run cannot be resumed; start another from its model: "
            f'model.path = "{checkpoint.model_directory}"'
        )
    if checkpoint.state.version > 0:
        if recipe.objective.kl_coefficient > 0:
            _check_reference(run)
        _check_store(run, checkpoint)


def _check_own_start(run: RunDirectory) -> None:
    """Refuse to start over where another run has already made steps."""
    if not (run.path / STORE_NAME).is_file():
        return
    with RunReader(run.path) as reader:
        origins = [session.origin for session in recorded_sessions(reader) if session.origin]
    if origins:
        raise CheckpointError(
            f'the run "{run.path}" has no checkpoint to continue from, and from version 0 it would be another run '
            f"({origins[-1]}); delete it and start it again"
        )


def _check_store(run: RunDirectory, checkpoint: Checkpoint) -> None:
    """Refuse a store that is damaged, or that lacks steps of the checkpoint.

    These were written before the checkpoint, so the store or its write-ahead log was lost or replaced.
    """
    version, num_recorded = checkpoint.state.version, 0
    if (run.path / STORE_NAME).is_file():
        with RunReader(run.path) as reader:
            reader.verify()
            num_recorded = reader.num_steps_to(version)
    if num_recorded < version:
        raise StoreError(
            f"store {run.path / STORE_NAME} holds {num_recorded} of the {version} steps that made "
            f"{checkpoint.directory}: it, or the {STORE_NAME}-wal beside it, was lost; put it back, or start "
            f'another run with model.path = "{checkpoint.model_directory}"'
        )


def _check_reference(run: RunDirectory) -> None:
    if not (run.reference / "config.json").is_file() and not is_adapter(run.reference):
        raise ConfigError(
            f'config: objective.kl_coefficient > 0 needs the policy of version 0, and "{run.reference}" is not '
            "there: the run was started without a KL term; resume it without one, or start another run"
        )


def names_a_run(given: Path) -> bool:
    """Whether `given` is a run; a model or data directory does not hide a shipped recipe of the same name."""
    return given.is_dir() and ((given / CONFIG_FILE).is_file() or str(given) not in shipped_recipes())


def recipe_of_run(directory: Path, overrides: Sequence[str], *, resume: bool) -> tuple[Path, list[str]]:
    """The recipe of a run that was named in place of a recipe, and overrides with the run's current location."""
    if not (directory / CONFIG_FILE).is_file():
        raise ConfigError(
            f'config: "{directory}" is a directory and not a run (no {CONFIG_FILE}); name a recipe, or a run '
            "to resume"
        )
    if not resume:
        raise ConfigError(f'config: "{directory}" is a run; {HOW_TO_RESUME}, or name a recipe')
    place = directory if directory.name not in ("", "..") else directory.resolve()
    return directory / CONFIG_FILE, ["--run.directory", str(place.parent), "--run.name", place.name, *overrides]


def recipe_to_resume(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The run's own recipe with this command's overrides: the file it was started from may have changed."""
    run = RunDirectory(Path(recipe.run.directory) / recipe.run.name)
    if not run.config.is_file():
        raise CheckpointError(f'there is no run "{run.path}" to resume; start it first')
    return load_recipe(run.config, overrides)


def is_unused(run: RunDirectory) -> bool:
    """Whether a run failed before its first step, so that its name can be used again."""
    if run.checkpoints.exists():
        return False
    try:
        with RunReader(run.path) as reader:
            return not reader.steps() and reader.status().state != "running"
    except FreerunError:  # without a readable store nothing shows that it was never used
        return not (run.path / STORE_NAME).exists()


CHANGEABLE = ("sft.lr", "sft.eval_every_steps", "sft.save_every_steps")
"""Keys that a resumed run may change although the rest of their section is fixed."""


def check_same_run(recipe: Recipe, saved: Recipe, run: RunDirectory) -> None:
    """Refuse to resume with other values of settings that determine the prompt of an ordinal or the batch size."""
    keys = ["run.seed", "sampling.group_size", "train.prompts_per_step"]
    if recipe.online.is_on != saved.online.is_on:  # an ordinal means a prompt, or a past session
        keys.append("online.feedback_seconds")
    for section in ("data", "lora", "sft"):
        keys += [f"{section}.{field.name}" for field in dataclasses.fields(getattr(recipe, section))]
    for key in keys:
        now, before = attrgetter(key)(recipe), attrgetter(key)(saved)
        if now != before and key not in CHANGEABLE:
            raise ConfigError(
                f'config: {key} = {now} differs from the run\'s own {before} in "{run.config}"; '
                "a run is resumed and forked with the data and batches it was started with"
            )
