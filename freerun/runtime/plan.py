"""What a run would do, in words and numbers, without generating or training: the text of `--dry-run`.

The only process it starts, for a moment, is a grader: whether a user's function can be imported is known only
where it is imported.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from pathlib import Path

from freerun.backends.ray_access import check_access
from freerun.backends.ray_demand import groups_of
from freerun.config.data import DataConfig
from freerun.config.recipe import Recipe
from freerun.data.mixture import parts_of
from freerun.data.source import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.model.adapter_directory import model_config
from freerun.model.projections import check_rank, num_adapter_parameters
from freerun.processes.local import LocalLauncher, Seat
from freerun.processes.placement import place, rollout_names, trainer_names
from freerun.reward.graders import check_graders
from freerun.runtime.build import check_model, check_prompts, make_grader, make_source

BYTES_PER_NUMBER = 4


def describe_plan(recipe: Recipe) -> str:
    """Reads model files and data, checks what can be checked, and says who does what on which core."""
    check_access(recipe.runtime)
    check_graders(recipe.reward)
    directory = Path(recipe.model.path)
    tokenizer = Tokenizer.load(directory)
    check_model(recipe, tokenizer, directory)
    check_rank(recipe.lora, model_config(directory), directory)
    source = make_source(recipe, tokenizer)
    check_prompts(recipe, source)
    asyncio.run(_try_graders(recipe))
    lines = [*_data_lines(recipe, source), *_stage_lines(recipe), *_memory_lines(recipe, directory)]
    return "\n".join(["plan", *(f"  {line}" for line in lines)])


async def _try_graders(recipe: Recipe) -> None:
    """Start one grader process and end it; raises what a run would be refused with."""
    alone = dataclasses.replace(recipe, reward=dataclasses.replace(recipe.reward, num_workers=1))
    with tempfile.TemporaryDirectory(prefix="freerun-plan-") as logs:
        grader = make_grader(alone, LocalLauncher(Path(logs), {}))
        try:
            await grader.start()
        finally:
            await grader.close()


def _data_lines(recipe: Recipe, source: PromptStream) -> list[str]:
    num_trained = recipe.train.num_steps * recipe.train.prompts_per_step
    lines = [
        f"data: {source.epoch_size} training prompts, {len(source.held_out(recipe.eval.num_prompts))} held out for"
        f" evaluation; {recipe.train.num_steps} steps use {num_trained} prompts, "
        f"{num_trained / source.epoch_size:.1f} epochs"
    ]
    if recipe.data.mixture:
        lines.append(f"data: a mixture of {_shares(recipe.data)}, each shuffled over epochs of its own")
    if source.num_too_long:
        lines.append(f"data: {source.num_too_long} prompts exceed data.max_prompt_tokens and are left out")
    return lines


def _shares(data: DataConfig) -> str:
    weights = data.weights or (1.0,) * len(data.mixture)
    parts = zip(weights, parts_of(data), strict=True)
    return ", ".join(f"{weight / sum(weights):.0%} {name}" for weight, name in parts)


def _stage_lines(recipe: Recipe) -> list[str]:
    is_local, placement = recipe.runtime.backend == "local", place(recipe)
    # GPUs that a device of auto would take are not known without the cluster.
    wanted = {name: group.demand for group in groups_of(recipe, has_gpus=False) for name in group.names}
    where = {
        name: _cores(seat) if is_local else f"{wanted[name]} of the Ray cluster"
        for name, seat in placement.seats.items()
    }
    started = (recipe.buffer.max_staleness + 1) * recipe.batch_size
    lines = [f"{name}: {recipe.engine.num_slots} slots, {where[name]}" for name in rollout_names(recipe)]
    lines.append(
        f"trainer: {recipe.batch_size} trajectories a step ({recipe.train.prompts_per_step} prompts x "
        f"{recipe.sampling.group_size}), {recipe.train.num_minibatches} updates, "
        + "; ".join(where[name] for name in trainer_names(recipe))
    )
    lines.append(f"graders: {recipe.reward.num_workers} x ({recipe.reward.grader})")
    lines.append(
        f"staleness: at most {recipe.buffer.max_staleness}; up to {started} trajectories started ahead of the "
        f"first step, policy {recipe.buffer.policy}"
    )
    if is_local and placement.is_crowded:
        lines.append(
            "warning: more threads than cores; nothing is pinned, and processes will slow each other down"
        )
    return lines


def _cores(seat: Seat) -> str:
    where = f"core {', '.join(map(str, seat.cores))}" if seat.cores else "any core"
    return f"{seat.num_threads} thread{'s' if seat.num_threads > 1 else ''} on {where}"


def _memory_lines(recipe: Recipe, directory: Path) -> list[str]:
    raw = model_config(directory)
    num_heads = raw["num_attention_heads"]
    head_size = raw.get("head_dim") or raw["hidden_size"] // num_heads
    kv_bytes = (
        2 * raw["num_hidden_layers"] * (raw.get("num_key_value_heads") or num_heads) * head_size * BYTES_PER_NUMBER
    )
    slot_tokens = min(recipe.max_sequence_tokens, raw["max_position_embeddings"], recipe.engine.cache_tokens)
    cache = kv_bytes * min(recipe.engine.cache_tokens, recipe.engine.num_slots * slot_tokens)
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    published, lines, frozen = weights, [], ""
    if recipe.lora.is_on:
        num_trained = num_adapter_parameters(recipe.lora, raw)
        published = num_trained * BYTES_PER_NUMBER
        frozen = f"{_size(weights)} of frozen weights and "
        lines.append(
            f"adapter: rank {recipe.lora.rank} on {', '.join(recipe.lora.targets)}; trains and publishes "
            f"{num_trained:,} parameters ({_size(published)}), the base stays as it is"
        )
    trainer = weights + (4 * published if recipe.lora.is_on else 3 * weights)
    return [
        *lines,
        f"memory: weights {_size(weights)}; trainer about {_size(trainer)} (weights, gradients, moments), "
        f"two shared buffers {_size(2 * published)}, {frozen}KV cache up to {_size(cache)} per rollout worker",
        f"memory: while evaluating {_size(published)} more, and up to as much cache again, per rollout worker",
    ]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
