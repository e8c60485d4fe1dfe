"""Whether the model and the data that a recipe names are there, before any process is started. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.config.shipped import shipped_recipes
from freerun.errors import ConfigError
from freerun.model.adapter_directory import is_adapter
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory


def names_a_run(given: Path) -> bool:
    """Whether a run is meant; a model or data directory does not hide the shipped recipe of the same name."""
    return given.is_dir() and ((given / "config.toml").is_file() or str(given) not in shipped_recipes())


def check_files(recipe: Recipe) -> None:
    """Fail before any process is started if the model or the data is not there."""
    check_data_files(recipe)
    check_model_files(recipe)


def check_model_files(recipe: Recipe) -> None:
    """Fail if there is no model to train, or a warm start has nothing to learn from."""
    from freerun.data.tasks import check_demonstrations, has_alphabet

    if recipe.warm_start.num_steps:
        check_demonstrations(recipe.data)
    model = Path(local_directory(recipe.model.path))
    task = recipe.data.task
    kind = f"tiny {{}} --task {task}" if has_alphabet(task) else "smollm2 {}"
    if not recipe.model.path:
        make = kind.format("DIR")
        raise ConfigError(
            f'config: model.path is empty; name a model directory ("freerun model {make}" makes one)'
        )
    if is_adapter(model):
        raise ConfigError(
            f'config: model.path = "{model}" is an adapter; make a model of it and its base to train on: '
            f"freerun model merge {model} DIR"
        )
    if is_hub_name(recipe.model.path) and not model.is_dir():
        raise ConfigError(f'config: model.path = "{model}" is no directory here, and {how_to_fetch(str(model))}')
    if not (model / "config.json").is_file():
        remedy = f'"freerun model {kind.format(model)}" makes one'
        if not has_alphabet(task) and "smollm2" not in model.name.lower():
            remedy = (
                "name one, or a model on the Hugging Face hub as ORGANISATION/NAME "
                '("freerun model smollm2 models/smollm2" makes a small one)'
            )
        raise ConfigError(
            f'config: model.path = "{recipe.model.path}" is not a model directory (no config.json); {remedy}'
        )


def check_data_files(recipe: Recipe) -> None:
    """Fail if there is no such task, its prompts are in files that are not there, or no grader can read them."""
    from freerun.data.mixture import parts_of
    from freerun.data.tasks import check_task

    for part in parts_of(recipe.data).values():
        check_task(part)
        grader = recipe.reward.grader
        if part.task.startswith("reasoning-gym/") and "reasoning-gym" not in grader and ":" not in grader:
            raise ConfigError(
                f'config: reward.grader = "{grader}" cannot read the answers of data.task = "{part.task}"; '
                'set reward.grader = "reasoning-gym"'
            )
