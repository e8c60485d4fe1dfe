"""What a run would do, in words and numbers, without starting anything: the text of `--dry-run`."""

from __future__ import annotations

import json
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.data.source import PromptSource
from freerun.data.tokenizer import Tokenizer
from freerun.reward.graders import check_grader
from freerun.runtime.build import check_model, make_source
from freerun.runtime.placement import place

BYTES_PER_NUMBER = 4


def describe_plan(recipe: Recipe) -> str:
    """Reads model files and data, checks what can be checked, and says who does what on which core."""
    check_grader(recipe.reward)
    directory = Path(recipe.model.path)
    tokenizer = Tokenizer.load(directory)
    check_model(recipe, tokenizer, directory)
    source = make_source(recipe, tokenizer)
    lines = [*_data_lines(recipe, source), *_stage_lines(recipe), *_memory_lines(recipe, directory)]
    return "\n".join(["plan", *(f"  {line}" for line in lines)])


def _data_lines(recipe: Recipe, source: PromptSource) -> list[str]:
    num_trained = recipe.train.num_steps * recipe.train.prompts_per_step
    lines = [
        f"data: {source.epoch_size} training prompts, {len(source.held_out(recipe.eval.num_prompts))} held out for"
        f" evaluation; {recipe.train.num_steps} steps use {num_trained} prompts, "
        f"{num_trained / source.epoch_size:.1f} epochs"
    ]
    if source.num_too_long:
        lines.append(f"data: {source.num_too_long} prompts exceed data.max_prompt_tokens and are left out")
    return lines


def _stage_lines(recipe: Recipe) -> list[str]:
    placement = place(recipe)
    started = (recipe.buffer.max_staleness + 1) * recipe.batch_size
    lines = [
        f"rollout-{index}: {recipe.engine.num_slots} slots, {_cores(cores, recipe.engine.num_threads)}"
        for index, cores in enumerate(placement.rollout_cores)
    ]
    lines.append(
        f"trainer: {recipe.batch_size} trajectories a step ({recipe.train.prompts_per_step} prompts x "
        f"{recipe.sampling.group_size}), {recipe.train.num_minibatches} updates, "
        f"{_cores(placement.trainer_cores, recipe.train.num_threads)}"
    )
    lines.append(f"graders: {recipe.reward.num_workers} x {recipe.reward.grader}")
    lines.append(
        f"staleness: at most {recipe.buffer.max_staleness}; up to {started} trajectories started ahead of the "
        f"first step, policy {recipe.buffer.policy}"
    )
    if placement.is_crowded:
        lines.append(
            "warning: more threads than cores; nothing is pinned, and processes will slow each other down"
        )
    return lines


def _cores(cores: tuple[int, ...], num_threads: int) -> str:
    where = f"core {', '.join(map(str, cores))}" if cores else "any core"
    return f"{num_threads} thread{'s' if num_threads > 1 else ''} on {where}"


def _memory_lines(recipe: Recipe, directory: Path) -> list[str]:
    raw = json.loads((directory / "config.json").read_text())
    num_heads = raw["num_attention_heads"]
    head_size = raw.get("head_dim") or raw["hidden_size"] // num_heads
    kv_bytes = (
        2 * raw["num_hidden_layers"] * (raw.get("num_key_value_heads") or num_heads) * head_size * BYTES_PER_NUMBER
    )
    slot_tokens = min(recipe.max_sequence_tokens, raw["max_position_embeddings"], recipe.engine.cache_tokens)
    cache = kv_bytes * min(recipe.engine.cache_tokens, recipe.engine.num_slots * slot_tokens)
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return [
        f"memory: weights {_size(weights)}; trainer about {_size(4 * weights)} (weights, gradients, moments), "
        f"two shared buffers {_size(2 * weights)}, KV cache up to {_size(cache)} per rollout worker",
        f"memory: while evaluating {_size(weights)} more, and up to as much cache again, per rollout worker",
    ]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
