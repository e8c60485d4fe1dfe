"""What a run will cost: disk, and time on this machine. Estimates, for the plan.

disk    checkpoints: float32 weights and two moments of what is trained, `checkpoint.keep` of them and the
        best, one more while it is written; the store: ids, logprobs and text of every completion at full length
time    8 operations per parameter and trained token (forward, backward, proximal logprobs), 2 per sampled token,
        at the speed of a matrix product measured now; completions of half the allowed length
"""

import os
import shutil
import time
from pathlib import Path

import numpy as np

from freerun.config.recipe import Recipe
from freerun.data.mixture import PromptStream
from freerun.session.memory import FLOAT32_BYTES, model_size, size_text

STORE_BYTES_PER_TOKEN = 24
_NUM_PROMPTS_COUNTED = 100
_SIDE = 768
_MEASURE_SECONDS = 0.2
_SPREAD = 2.0
"""On two idle cores times-tables takes 3.5 minutes, near the lower end: its completions are short."""


def describe_costs(recipe: Recipe, directory: Path, source: PromptStream, *, is_on_cpu: bool) -> list[str]:
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
    if is_on_cpu:
        lines.append(_time_line(recipe, source, size.num_parameters))
    if total > free:
        lines.append(
            f"warning: the run may need {size_text(total)} of disk and {size_text(free)} are free; set "
            "checkpoint.keep = 1 or another run.directory"
        )
    return lines


def _num_kept(recipe: Recipe) -> int:
    """Checkpoints at the end, at most: the newest, and the best of those that were evaluated."""
    steps, keeps_best = recipe.train.num_steps, recipe.checkpoint.keep_best and recipe.eval.num_prompts > 0
    num_evaluated = -(-steps // recipe.eval.every_steps) if keeps_best else 0
    return min(recipe.checkpoint.keep + keeps_best, -(-steps // recipe.checkpoint.every_steps) + num_evaluated)


def _sampled_tokens(recipe: Recipe) -> int:
    """Tokens of all completions, if each has the full length."""
    per_sample = recipe.rollout.max_session_tokens if recipe.rollout.runs_sessions else 0
    per_sample = per_sample or recipe.sampling.max_completion_tokens
    return recipe.train.num_steps * recipe.batch_size * per_sample


def _time_line(recipe: Recipe, source: PromptStream, num_parameters: int) -> str:
    prompts = [source.at(ordinal) for ordinal in range(min(_NUM_PROMPTS_COUNTED, source.epoch_size))]
    prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)
    num_samples = recipe.train.num_steps * recipe.batch_size
    num_evals = 1 + recipe.train.num_steps // recipe.eval.every_steps
    num_evaluated = num_evals * recipe.eval.num_prompts * recipe.eval.num_samples
    half = _sampled_tokens(recipe) / max(1, num_samples) / 2
    trained = num_samples * (prompt_tokens + half)
    sampled = (num_samples + num_evaluated) * half
    seconds = num_parameters * (8 * trained + 2 * sampled) / _operations_per_second()
    return (
        f"time: {_range(seconds / _SPREAD, seconds * _SPREAD)} on this machine, if "
        "completions have half the allowed length; the run itself says how much is left"
    )


def _operations_per_second() -> float:
    """Speed of float32 matrix products on all cores, by CPU time because other programs may be running."""
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    num_done, began = 0, time.process_time()
    while (seconds := time.process_time() - began) < _MEASURE_SECONDS:
        matrix @ matrix
        num_done += 1
    return len(os.sched_getaffinity(0)) * 2 * _SIDE**3 * num_done / seconds


def _range(low: float, high: float) -> str:
    """`roughly 2 min to 8 min`, or one number if both ends are equal."""
    shortest, longest = _duration(low), _duration(high)
    return f"roughly {shortest} to {longest}" if shortest != longest else f"about {longest}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
