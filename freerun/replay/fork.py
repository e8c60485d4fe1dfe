"""Fork: a new run that continues from a version of another run, with live engines and other settings.

It works like `--resume` in another directory. The record up to that version is copied, and the state of the
checkpoint. Without a checkpoint the state is rebuilt: weights and optimizer by training the recorded batches,
the rest from the store (`recorded_state.py`). The other run is only read.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.config.changes import Change, changes_between
from freerun.config.load import dump_toml, recipe_of_toml
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint, CheckpointWriter, ControllerState, read_checkpoint
from freerun.errors import CheckpointError, ConfigError, FreerunError
from freerun.events.events import RunFinished
from freerun.events.reader import RunReader
from freerun.events.run_files import saved_versions
from freerun.events.store import Store
from freerun.model.hub import with_local_model
from freerun.replay.descended_run import check_name, data_fingerprint, descended_run, with_own_rows
from freerun.replay.difference import Difference
from freerun.replay.plan import ReplayPlan, plan_replay
from freerun.replay.recorded_state import state_at
from freerun.replay.replay import Comparison, ReplayProgress, retrain
from freerun.replay.retrainer import Retrainer
from freerun.replay.settings import RunSettings
from freerun.replay.what_if_settings import check_start
from freerun.session.preflight import check_setup, read_inputs
from freerun.session.provenance import session_start
from freerun.session.run_directory import RunDirectory, check_same_run


@dataclass(frozen=True)
class ForkPlan:
    """The origin of a fork."""

    origin: RunDirectory
    run: RunDirectory
    recipe: Recipe
    version: int
    checkpoint: Checkpoint | None
    """The checkpoint to use unchanged; None if a replay must rebuild weights and optimizer."""
    replay: ReplayPlan | None
    state: ControllerState
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    @property
    def story(self) -> str:
        """A description of the origin, for the run's record."""
        changed = f", with {', '.join(map(str, self.changes))}" if self.changes else ""
        return f"forked from {self.origin.path} at version {self.version}{changed}"


def plan_fork(directory: Path, *, version: int, overrides: Sequence[str]) -> ForkPlan:
    """Find the state of the version; refuse what cannot be forked before anything is written."""
    origin = RunDirectory(directory)
    if not origin.config.is_file():
        raise FreerunError(f'"{directory}" has no config.toml, so it is no run of freerun train; name a run')
    with RunReader(directory) as reader:
        recorded, settings = reader.step_range(), RunSettings.read(origin, reader)
    if recorded is None or not recorded[0] <= version <= recorded[1]:
        known = f"its steps made the versions {recorded[0]} to {recorded[1]}" if recorded else "it made no step"
        raise FreerunError(f'the run "{directory}" has no version {version} to fork at: {known}')
    before = settings.of_step(version)
    recipe = _forked_recipe(before, directory, overrides)
    run = RunDirectory(Path(recipe.run.directory) / recipe.run.name)
    check_name(run)
    check_same_run(recipe, before, origin)
    if recipe.train.num_steps <= version:
        raise ConfigError(
            f"config: train.num_steps = {recipe.train.num_steps} leaves no step after version {version}; "
            "raise it with --train.num_steps"
        )
    check_start(
        before,
        recipe,
        start=version,
        has_reference=origin.reference.is_dir(),
        instead=f'try it with "freerun replay {directory} --from 1 --set", or start another run',
    )
    check_setup(recipe, is_new=False)
    saved = _saved(origin, version)
    state, lost = (saved.state, []) if saved else _state_of_store(origin, before, version)
    # A resumed run would read these inputs, so errors are raised before the fork is created.
    read_inputs(recipe, origin.model, checkpoint=saved or Checkpoint(origin.path, state, has_optimizer=False))
    checkpoint = saved if saved is not None and saved.has_optimizer else None
    replay = None if checkpoint else plan_replay(directory, first=version, last=version)
    changes = [c for c in changes_between(before, recipe) if c.key not in ("run.name", "run.directory")]
    return ForkPlan(
        origin=origin,
        run=run,
        recipe=with_own_rows(recipe, origin, run),
        version=version,
        checkpoint=checkpoint,
        replay=replay,
        state=state,
        changes=tuple(changes),
        warnings=(*lost, *(replay.warnings if replay else ())),
    )


def _forked_recipe(before: Recipe, directory: Path, overrides: Sequence[str]) -> Recipe:
    """The settings of that version with the overrides; the fork lies next to the other run unless overridden."""
    if "--run.name" not in {argument.partition("=")[0] for argument in overrides}:
        raise ConfigError("config: a fork is a run of its own; name it with --run.name NAME")
    place = directory if directory.name not in ("", "..") else directory.resolve()
    settings = ["--run.directory", str(place.parent), *overrides]
    return with_local_model(recipe_of_toml(dump_toml(before), settings, where=str(directory)))


def _saved(run: RunDirectory, version: int) -> Checkpoint | None:
    """The checkpoint of the version, if it exists and is undamaged."""
    if version not in saved_versions(run.checkpoints):
        return None
    try:
        return read_checkpoint(run.checkpoints / f"step-{version}")
    except CheckpointError:
        return None


def _state_of_store(run: RunDirectory, recipe: Recipe, version: int) -> tuple[ControllerState, list[str]]:
    """The state rebuilt without a checkpoint, and notes about what cannot be rebuilt."""
    fingerprint = data_fingerprint(run, recipe)
    with RunReader(run.path) as reader:
        state = state_at(reader, version, data_fingerprint=fingerprint)
    lost = []
    if state.buffer.to_restart:
        number = len(state.buffer.to_restart)
        lost.append(f"{number} prompts that were being sampled, or waited in the buffer, are sampled again")
    if recipe.data.min_pass_rate > 0 or recipe.data.max_pass_rate < 1:
        lost.append("the curriculum begins again: which prompts it rested is only known at a checkpoint")
    if recipe.keeps_fresh:
        lost.append(
            "buffer.keep_fresh begins again: how many batches ahead it let rollouts start is only known at a "
            "checkpoint"
        )
    return state, lost


def make_fork(plan: ForkPlan, *, on_progress: ReplayProgress) -> Difference | None:
    """Write the new run up to the version; returns a difference between rebuilt and recorded weights, if any."""
    seconds = plan.state.seconds
    with descended_run(plan.origin, plan.run, plan.recipe, version=plan.version, seconds=seconds) as temporary:
        difference = None
        if plan.checkpoint is not None:
            name = plan.checkpoint.directory.name
            shutil.copytree(plan.checkpoint.directory, temporary.checkpoints / name)
        else:
            difference = _train_again(plan, temporary, on_progress)
        _record(plan, temporary)
    return difference


def _train_again(plan: ForkPlan, temporary: RunDirectory, on_progress: ReplayProgress) -> Difference | None:
    with tempfile.TemporaryDirectory(prefix="freerun-fork-") as scratch:
        return asyncio.run(_train_and_save(plan, temporary, Path(scratch), on_progress))


async def _train_and_save(
    plan: ForkPlan, temporary: RunDirectory, scratch: Path, on_progress: ReplayProgress
) -> Difference | None:
    assert plan.replay is not None
    retrainer = Retrainer(plan.origin, scratch, num_threads=plan.replay.num_threads)
    comparison = Comparison(goes_on=True)
    try:
        await retrain(plan.replay, retrainer, on_progress, comparison.take)
        await save_checkpoint(retrainer, temporary.checkpoints, plan.state)
    finally:
        await retrainer.close()
    return comparison.difference


async def save_checkpoint(retrainer: Retrainer, checkpoints: Path, state: ControllerState) -> Path:
    """Write a checkpoint of the retrainer's version, like those of a run."""
    writer = CheckpointWriter(checkpoints, state)
    try:
        await retrainer.save(writer.directory, version=state.version)
        return await writer.seal(keep=1)
    except BaseException:
        writer.discard()
        raise


def _record(plan: ForkPlan, temporary: RunDirectory) -> None:
    """Record a session that did nothing but fork: even if no other begins, the run can be resumed."""
    seconds, directory = plan.state.seconds, plan.run.path
    with Store(temporary.path) as store:
        store(session_start(plan.recipe, directory, seconds=seconds, version=plan.version, origin=plan.story))
        store(
            RunFinished(
                seconds=seconds,
                outcome="interrupted",
                reason="forked, and not trained on yet",
                version=plan.version,
                model_directory=str(directory / "checkpoints" / f"step-{plan.version}" / "model"),
            )
        )
