"""What to evaluate: the model behind a path and the prompts behind a task."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from freerun.config.load import key_types, load_recipe, make_recipe
from freerun.config.recipe import EvalConfig, Recipe
from freerun.config.shipped import shipped_recipes
from freerun.errors import CheckpointError, ConfigError, ModelError
from freerun.model.adapter_directory import is_adapter
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory
from freerun.session.run_directory import CONFIG_FILE

if TYPE_CHECKING:
    from freerun.controller.checkpoint import Checkpoint
    from freerun.evaluation.job import EvalJob, Split
    from freerun.events.best import CheckpointVersion


def make_job(
    target: Path,
    task: str | Recipe,
    overrides: Sequence[str],
    *,
    version: CheckpointVersion | None,
    ks: Sequence[int],
    split: Split,
    is_greedy: bool,
) -> EvalJob:
    """Everything that determines the evaluation, checked before anything starts."""
    from freerun.evaluation.job import EvalJob, Split
    from freerun.evaluation.report import check_ks

    if split not in get_args(Split):
        raise ConfigError(f'split "{split}" must be one of {", ".join(get_args(Split))}')
    model, found = find_model(target, version)
    own_recipe = target / CONFIG_FILE
    if isinstance(task, Recipe):
        recipe, task = task, ""
    else:
        recipe = find_recipe(task, own_recipe if own_recipe.is_file() else None, overrides)
    if not recipe.generates:  # a recipe for SFT alone, which has no prompts
        recipe = dataclasses.replace(
            recipe, eval=dataclasses.replace(recipe.eval, num_prompts=EvalConfig.num_prompts)
        )
    if is_greedy:  # all samples would be the same
        recipe = dataclasses.replace(recipe, eval=dataclasses.replace(recipe.eval, num_samples=1))
    check_ks(ks, recipe.eval.num_samples)
    rows = recipe.data.path or recipe.run.name  # a mixture has no path
    name = task or (rows if recipe.data.reads_rows else recipe.data.task)
    return EvalJob(recipe, str(model), found, Path(name).name, split, is_greedy)


def find_model(target: Path, version: CheckpointVersion | None = None) -> tuple[Path, int]:
    """The model directory itself, or that of a run's checkpoint: the newest one, or the one of `version`."""
    target = Path(local_directory(str(target)))
    if (target / "config.json").is_file() or is_adapter(target):
        if version is not None:
            raise CheckpointError(f'"{target}" is a model, not a run: it has no version {version}')
        _verify_own_checkpoint(target)
        return target, 0
    if is_hub_name(str(target)):
        raise ModelError(f'"{target}" is not a directory, and {how_to_fetch(str(target))}')
    if not (target / CONFIG_FILE).is_file():
        raise ModelError(
            f'"{target}" is neither a model directory (no config.json) nor a run (no config.toml); '
            "name one, such as models/smollm2 or runs/times-tables"
        )
    from freerun.controller.checkpoint import read_checkpoint

    checkpoints = target / "checkpoints"
    if version == "best":
        version = _best_version(target, checkpoints)
        if version == 0 and not (checkpoints / "step-0").is_dir():
            return find_model(Path(load_recipe(target / CONFIG_FILE, []).model.path))
    if version is None:
        checkpoint = _newest_whole(target, checkpoints)
    elif (checkpoints / f"step-{version}").is_dir():
        checkpoint = read_checkpoint(checkpoints / f"step-{version}")
    else:
        kept = ", ".join(sorted(path.name for path in checkpoints.glob("step-*"))) or "none"
        raise CheckpointError(f'the run "{target}" has no checkpoint of version {version}; it keeps {kept}')
    return checkpoint.model_directory, checkpoint.state.version


def _best_version(run: Path, checkpoints: Path) -> int:
    """The available version with the best held-out accuracy."""
    from freerun.events.best import best_eval
    from freerun.events.reader import RunReader
    from freerun.events.run_files import saved_versions

    with RunReader(run) as reader:
        best = best_eval(reader.evals(), kept=saved_versions(checkpoints))
    if best is None:
        raise CheckpointError(f'the run "{run}" has no held-out evaluation, so no best version; name a version')
    return best.version


def _newest_whole(run: Path, checkpoints: Path) -> Checkpoint:
    """The run's newest undamaged checkpoint; reports newer ones that are damaged."""
    from freerun.controller.checkpoint import find_checkpoint

    found = find_checkpoint(checkpoints)
    if found.checkpoint is None:
        raise CheckpointError(f'the run "{run}" has no checkpoint yet (no checkpoints/step-*)')
    for damage in found.damage:
        print(f"freerun: {damage}; using {found.checkpoint.directory.name} instead", file=sys.stderr)
    return found.checkpoint


def _verify_own_checkpoint(model: Path) -> None:
    """Refuse the model of a checkpoint if its files do not match the manifest above it."""
    from freerun.controller.manifest import MANIFEST_FILE, verify

    checkpoint = model.resolve().parent
    if model.resolve().name == "model" and (checkpoint / MANIFEST_FILE).exists():
        verify(checkpoint)


def find_recipe(task: str, own_recipe: Path | None, overrides: Sequence[str]) -> Recipe:
    """The recipe that TASK names, or the run's own recipe (else the defaults) with the data that TASK names."""
    if _is_recipe(task):
        return load_recipe(Path(task), overrides)
    if not task and own_recipe is None:
        raise ConfigError("a model directory is no run: name a task to evaluate it on (--task, in Python task)")
    data = [*_data_overrides(task), *overrides]
    if own_recipe is None:
        return make_recipe(Path(task).stem, data)
    # The run's data settings do not apply to other data, except the limit on prompt length.
    of_own_data = [key for key in key_types() if key.startswith("data.") and key != "data.max_prompt_tokens"]
    recipe = load_recipe(own_recipe, data, without=of_own_data if task else ())
    if not task and not recipe.generates:
        raise ConfigError("the run did SFT alone: name a task to evaluate it on (--task, in Python task)")
    return recipe


def _is_recipe(task: str) -> bool:
    """Whether TASK is a recipe; a built-in task takes precedence over a shipped recipe of the same name."""
    from freerun.data.tasks import is_built_in

    return task.endswith(".toml") or (
        task in shipped_recipes() and not is_built_in(task) and not Path(task).is_file()
    )


def _data_overrides(task: str) -> list[str]:
    if not task:
        return []
    if Path(task).is_file():
        return ["--data.task", "file", "--data.path", task, "--data.held_out_path", task]
    return ["--data.task", task]


def new_directory(target: Path, job: EvalJob) -> Path:
    """A directory named after the target and the time: below the run, or below evals/ for a model directory."""
    is_run = (target / CONFIG_FILE).is_file()
    subject = f"step-{job.version}" if is_run else target.resolve().name
    name = f"{subject}-{Path(job.task).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return (target / "evals" if is_run else Path("evals")) / name
