"""Plans a replay: which steps of a run, from which weights, with which settings, on how many threads.

It starts from version 0, or from the newest checkpoint before the first requested step. Version 0 is the model
of the recipe; after SFT it is its checkpoint, or SFT is repeated. Each step is trained with the settings of its
session: a run may be resumed with other settings.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.config.changes import changes_between
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint, read_checkpoint
from freerun.data.demonstrations import SftData
from freerun.data.tokenizer import Tokenizer
from freerun.errors import CheckpointError, FreerunError
from freerun.events.events import Provenance
from freerun.events.reader import RunReader
from freerun.events.run_files import saved_versions
from freerun.model.adapter_directory import check_directory
from freerun.replay.settings import RunSettings
from freerun.session.provenance import provenance_of
from freerun.session.run_directory import RunDirectory
from freerun.session.sft import make_sft_data

TRAINING = ("objective", "train", "sampling")
"""The sections that determine what a step makes of its batch, and that a resumed run may change."""


@dataclass(frozen=True)
class SameSettings:
    """Consecutive steps that were trained with the same settings."""

    recipe: Recipe
    first: int
    last: int


@dataclass(frozen=True)
class ReplayPlan:
    """The steps to `first` ... `last`, after those between the checkpoint and `first`."""

    run: RunDirectory
    stretches: tuple[SameSettings, ...]
    checkpoint: Checkpoint | None
    """None for version 0, from the model of the recipe."""
    sft: SftData | None
    """Data for SFT before version 0; None without SFT, or if the checkpoint is a later one."""
    first: int
    last: int
    num_threads: int
    warnings: tuple[str, ...]
    """Differences from the recorded conditions, because of which the last bits may differ."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first steps."""
        return self.stretches[0].recipe

    @property
    def start(self) -> int:
        return self.checkpoint.state.version if self.checkpoint else 0

    @property
    def source(self) -> str:
        """Where the starting weights come from, as text for people."""
        if self.checkpoint is not None:
            return f'the checkpoint "{self.checkpoint.directory}"'
        model = f'the model "{self.recipe.model.path}"'
        return f"{model} and {self.sft.num_steps} steps of SFT" if self.sft else model


def plan_replay(
    directory: Path,
    *,
    first: int | None = None,
    last: int | None = None,
    num_threads: int | None = None,
    overrides: Sequence[str] = (),
) -> ReplayPlan:
    """Read the settings, find the weights and the steps; raises before work starts if something is missing.

    The steps from `first` on are trained with the overrides.
    """
    run = RunDirectory(directory)
    if not run.config.is_file():
        raise FreerunError(f'"{directory}" has no config.toml, so it is no run of freerun train; name a run')
    with RunReader(directory) as reader:
        recorded, sessions, settings = reader.step_range(), reader.provenance(), RunSettings.read(run, reader)
        num_moves = sum(1 for _ in reader.events("cores_moved"))
    if recorded is None:
        raise FreerunError(f'the run "{directory}" has no recorded step to train again')
    first, last = _checked_range(first, last, recorded[1])
    checkpoint = _newest_before(run, first)
    if checkpoint is None and recorded[0] > 1:
        raise FreerunError(
            f'the store of "{directory}" begins with step {recorded[0]}; replay it --from a later one'
        )
    threads = num_threads or sessions[0].num_trainer_threads or settings.config.train.num_threads or 1
    start = checkpoint.state.version if checkpoint else 0

    def settings_of(version: int) -> Recipe:
        changed = overrides if version >= first else ()
        return replayed_recipe(settings.of_step(version, changed), threads)

    stretches = _stretches(range(start + 1, last + 1), {first, *settings.first_steps}, settings_of)
    recipe = stretches[0].recipe
    return ReplayPlan(
        run=run,
        stretches=stretches,
        checkpoint=checkpoint,
        sft=_sft_to_repeat(run, recipe, checkpoint),
        first=first,
        last=last,
        num_threads=threads,
        warnings=(
            *_changes(sessions, recipe, threads),
            *_lent_cores(num_moves),
            *_edited(settings.config, settings.of_step(recorded[1])),
        ),
    )


def _checked_range(first: int | None, last: int | None, newest: int) -> tuple[int, int]:
    """The first and last version to make, checked; versions are counted like steps, from 1."""
    begin, end = 1 if first is None else first, newest if last is None else last
    if not 1 <= begin <= end <= newest:
        raise FreerunError(f"--from {begin} --until {end} is no range of the recorded steps 1 to {newest}")
    return begin, end


def _newest_before(run: RunDirectory, first: int) -> Checkpoint | None:
    """The newest checkpoint from which the step to `first` can be trained; damaged ones are skipped."""
    for version in sorted(saved_versions(run.checkpoints), reverse=True):
        if version >= first:
            continue
        try:
            checkpoint = read_checkpoint(run.checkpoints / f"step-{version}")
        except CheckpointError:
            continue
        if checkpoint.state.sft is not None:
            continue
        if version == 0:  # the optimizer has no moments yet
            return dataclasses.replace(checkpoint, has_optimizer=False)
        if checkpoint.has_optimizer:
            return checkpoint
    return None


def _sft_to_repeat(run: RunDirectory, recipe: Recipe, checkpoint: Checkpoint | None) -> SftData | None:
    if checkpoint is None or recipe.lora.is_on:
        check_directory(Path(recipe.model.path))
    return make_sft_data(recipe, Tokenizer.load(run.model), checkpoint) if recipe.sft.is_on else None


def _stretches(
    versions: range, bounds: Collection[int], settings_of: Callable[[int], Recipe]
) -> tuple[SameSettings, ...]:
    """Divide the versions into stretches with equal settings, which can only change at the `bounds`."""
    found: list[SameSettings] = []
    for version in versions:
        if found and version not in bounds:
            found[-1] = dataclasses.replace(found[-1], last=version)
            continue
        recipe = settings_of(version)
        if found and trains_alike(found[-1].recipe, recipe):
            found[-1] = dataclasses.replace(found[-1], last=version)
        else:
            found.append(SameSettings(recipe, version, version))
    return tuple(found)


def trains_alike(one: Recipe, other: Recipe) -> bool:
    """Whether a step gives the same result from its batch with both recipes."""
    keys = {change.key for change in changes_between(one, other) if change.key.split(".")[0] in TRAINING}
    if one.train.lr_schedule == other.train.lr_schedule == "constant":
        keys.discard("train.num_steps")
    return not keys


def _edited(config: Recipe, newest: Recipe) -> list[str]:
    changes = [c for c in changes_between(newest, config) if c.key.split(".")[0] in TRAINING]
    return [f"config.toml has {c.key} = {c.after}, but the run had {c.before}, which is used" for c in changes]


def replayed_recipe(recipe: Recipe, num_threads: int) -> Recipe:
    """The recipe for the same training on this machine."""
    return dataclasses.replace(
        recipe,
        train=dataclasses.replace(recipe.train, num_threads=num_threads),
        runtime=dataclasses.replace(recipe.runtime, backend="local"),
    )


def _changes(sessions: list[Provenance], recipe: Recipe, num_threads: int) -> list[str]:
    """Differences from any session of the run, each listed once."""
    now, found = provenance_of(recipe), dict[str, None]()
    for then in sessions:
        for what, was, is_now in (
            ("torch", then.torch, now.torch),
            ("the processor", then.cpu, now.cpu),
            ("freerun", then.freerun, now.freerun),
            ("the trainer's number of threads", then.num_trainer_threads, num_threads),
        ):
            if was and was != is_now:
                found[f"{what} was {was}, now {is_now}: the last bits may differ"] = None
    return list(found)


def _lent_cores(num_moves: int) -> list[str]:
    if not num_moves:
        return []
    return [
        f"the trainer's cores changed {num_moves} times during the run, and do not now: the last bits may differ"
    ]
