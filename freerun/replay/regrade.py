"""Regrading: applies another grader to the completions that a run trained on; nothing is generated.

Each group is graded with the settings of the session that graded it. Prompts are read again from the run's
data, since graders may need the fields of their rows.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from freerun.config.load import dump_toml, recipe_of_toml
from freerun.config.recipe import Recipe
from freerun.config.user_code import is_user_code
from freerun.data.mixture import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError
from freerun.events.batches import recorded_batch
from freerun.events.reader import RunReader
from freerun.processes.local import LocalLauncher
from freerun.replay.settings import RunSettings, group_sessions
from freerun.reward.graders import check_graders
from freerun.session.assembly import RunGrader, make_grader
from freerun.session.build import make_source, reward_configs
from freerun.session.run_directory import RunDirectory
from freerun.types import Group, Prompt, Reward


@dataclass(frozen=True)
class RegradedStep:
    """One step: how many rewards changed, and the means over the completions that could be graded."""

    version: int
    num_graded: int
    num_changed: int
    num_failed: int
    """Number of completions that the grader could not judge."""
    recorded: float
    regraded: float


def regrade(directory: Path, grader: str, *, on_step: Callable[[RegradedStep], None]) -> None:
    """Grade every step; an empty `grader` means the run's own."""
    run = RunDirectory(directory)
    with tempfile.TemporaryDirectory(prefix="freerun-regrade-") as logs, RunReader(directory) as reader:
        settings = RunSettings.read(run, reader)
        if settings.config.rollout.runs_sessions or settings.config.online.is_on:
            raise FreerunError(
                f'the run "{directory}" has sessions, which rate themselves; only completions are regraded'
            )
        recipes, used = _recipes_of_groups(reader, settings)
        recipes = [_with_grader(recipe, grader) for recipe in recipes]
        for config in (config for recipe in recipes for config in reward_configs(recipe)):
            check_graders(config)
        asking = max(recipes, key=_asks_for_rows, default=settings.config)
        source = make_source(asking, Tokenizer.load(run.model))
        asyncio.run(_regrade(recipes, used, reader, source, Path(logs), bool(grader), on_step))


def _recipes_of_groups(reader: RunReader, settings: RunSettings) -> tuple[list[Recipe], dict[int, int]]:
    """The recipes that grade differently, and the index of the one that graded each group, by ordinal."""
    started, recipes = group_sessions(reader), list[Recipe]()
    used: dict[int, int] = {}
    for version, ordinal, _ in reader.trained_groups():
        recorded = settings.of_group(ordinal, started, version=version)
        used[ordinal] = next(
            (i for i, recipe in enumerate(recipes) if _grades_alike(recipe, recorded)), len(recipes)
        )
        if used[ordinal] == len(recipes):
            recipes.append(recorded)
    return recipes, used


def _grades_alike(one: Recipe, other: Recipe) -> bool:
    of_one, of_other = ((r.reward, r.sampling.max_completion_tokens) for r in (one, other))
    return of_one == of_other


def _asks_for_rows(recipe: Recipe) -> bool:
    """Whether the recipe needs rows: only graders of the user do."""
    return any(is_user_code(part.grader) for config in reward_configs(recipe) for part in config.parts)


def _with_grader(recipe: Recipe, grader: str) -> Recipe:
    if not grader:
        return recipe
    return recipe_of_toml(dump_toml(recipe), ["--reward.grader", grader], where="the settings of the run")


async def _regrade(
    recipes: Sequence[Recipe],
    used: dict[int, int],
    reader: RunReader,
    source: PromptStream,
    logs: Path,
    is_other: bool,
    on_step: Callable[[RegradedStep], None],
) -> None:
    graders = [make_grader(recipe, LocalLauncher(logs, {})) for recipe in recipes]
    try:
        for grader in graders:
            await grader.start()
        for step in reader.steps():
            groups = recorded_batch(reader.trajectories(step.version))
            prompts = [_prompt(source, group, is_other=is_other) for group in groups]
            of_groups = [graders[used[group.ordinal]] for group in groups]
            on_step(await _regrade_step(of_groups, step.version, prompts, groups))
    finally:
        for grader in graders:
            await grader.close()


def _prompt(source: PromptStream, group: Group, *, is_other: bool) -> Prompt:
    """The prompt with its row; a given grader replaces those of the parts of a mixture."""
    prompt, recorded = source.at(group.ordinal), group.trajectories[0].prompt
    if prompt.text != recorded.text:
        raise FreerunError(
            f"prompt {group.ordinal} ({recorded.key}) is not the one in the run's data now; restore the data"
        )
    return msgspec.structs.replace(prompt, grader="") if is_other else prompt


async def _regrade_step(
    graders: Sequence[RunGrader], version: int, prompts: list[Prompt], groups: tuple[Group, ...]
) -> RegradedStep:
    graded = await asyncio.gather(
        *(
            grader.grade_group(prompt, [trajectory.completion for trajectory in group.trajectories])
            for grader, prompt, group in zip(graders, prompts, groups, strict=True)
        )
    )
    before = [trajectory.reward.value for group in groups for trajectory in group.trajectories]
    grades = [grade for of_group in graded for grade in of_group]
    pairs = [(was, now.value) for was, now in zip(before, grades, strict=True) if isinstance(now, Reward)]
    count = max(1, len(pairs))
    return RegradedStep(
        version=version,
        num_graded=len(pairs),
        num_changed=sum(was != now for was, now in pairs),
        num_failed=len(grades) - len(pairs),
        recorded=sum(was for was, _ in pairs) / count,
        regraded=sum(now for _, now in pairs) / count,
    )
