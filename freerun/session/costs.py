"""Estimates the disk space of a run for the plan. For its time see `simulation/forecast.py`.

disk    checkpoints: float32 weights and two moments of what is trained, `checkpoint.keep` of them and the
        best, one more while it is written; the store: ids, logprobs and text of every completion at full length
"""

import shutil
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.session.memory import FLOAT32_BYTES, model_size, size_text

STORE_BYTES_PER_TOKEN = 24


def describe_costs(recipe: Recipe, directory: Path) -> list[str]:
    """Lines for the plan, with a warning if the disk is too small."""
    size = model_size(recipe, directory)
    checkpoint = 3 * size.num_trained * FLOAT32_BYTES
    num_kept = _num_kept(recipe)
    kept = f"{num_kept} checkpoint{'s' if num_kept != 1 else ''}"
    store = _sampled_tokens(recipe) * STORE_BYTES_PER_TOKEN
    total = (num_kept + 1) * checkpoint + store
    free = shutil.disk_usage(_existing(Path(recipe.run.directory))).free
    lines = [
        f"disk: about {size_text(num_kept * checkpoint + store)} in {recipe.run.directory}/{recipe.run.name} "
        f"({kept} of {size_text(checkpoint)}, store up to {size_text(store)}), and a checkpoint "
        f"more while it is written; {size_text(free)} are free"
    ]
    if total > free:
        lines.append(
            f"warning: the run may need {size_text(total)} of disk and {size_text(free)} are free; set "
            "checkpoint.keep = 1 or another run.directory"
        )
    return lines


def _num_kept(recipe: Recipe) -> int:
    """Checkpoints kept at the end, at most: the newest, and the best evaluated one."""
    steps, keeps_best = recipe.train.num_steps, recipe.checkpoint.keep_best and recipe.eval.num_prompts > 0
    num_evaluated = -(-steps // recipe.eval.every_steps) if keeps_best else 0
    return min(recipe.checkpoint.keep + keeps_best, -(-steps // recipe.checkpoint.every_steps) + num_evaluated)


def _sampled_tokens(recipe: Recipe) -> int:
    """Tokens of all completions, if each has the maximal length."""
    per_sample = recipe.rollout.max_session_tokens if recipe.rollout.runs_sessions else 0
    per_sample = per_sample or recipe.sampling.max_completion_tokens
    return recipe.train.num_steps * recipe.batch_size * per_sample


def _existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
