"""How much memory a run will take, from the model's files and the recipe alone.

    trainer          float32 weights, gradients and two moments; in bfloat16 also the weights it computes with
    shared buffers   two versions of what is published, in float32, in the CPU's memory; on Ray for each worker
    rollout worker   a KV cache in its dtype, on a CPU as far as it is used, on a GPU every slot at full length;
                     weights of its own unless it reads the buffers in place, which needs a CPU and float32,
                     and then a packed copy of the large matrices;
                     for vLLM with an adapter also the base and the merged weights, in float32

Activations are not counted.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from freerun.config.engine import BYTES
from freerun.config.recipe import Recipe
from freerun.model.adapter_directory import model_config
from freerun.model.config_file import cached_numbers
from freerun.model.decoder_config import read_config
from freerun.model.projections import num_adapter_parameters, num_kept_twice, num_packed_elements
from freerun.model.tensor_names import stacked_parts

FLOAT32_BYTES = BYTES["float32"]


def describe_memory(recipe: Recipe, directory: Path, *, engine_device: str) -> list[str]:
    """Lines for people."""
    raw = model_config(directory)
    num_parameters = count_parameters(directory)
    num_trained = num_adapter_parameters(recipe.lora, raw) if recipe.lora.is_on else num_parameters
    num_frozen = num_parameters if recipe.lora.is_on else 0
    published = num_trained * FLOAT32_BYTES
    lines = []
    if recipe.lora.is_on:
        lines.append(
            f"adapter: rank {recipe.lora.rank} on {', '.join(recipe.lora.targets)}; trains and publishes "
            f"{num_trained:,} parameters ({_size(published)}), the base stays as it is"
        )
    trainer = num_frozen * FLOAT32_BYTES + 4 * published
    parts = "weights, gradients, moments"
    if recipe.train.dtype == "bfloat16":
        trainer += (num_frozen + num_trained) * BYTES["bfloat16"]
        parts += " in float32, weights again in bfloat16"
    whose = " of each worker on Ray" if recipe.runtime.backend == "ray" else ""
    return [
        *lines,
        f"memory: weights {_size(num_parameters * FLOAT32_BYTES)}; trainer about {_size(trainer)} ({parts}), two "
        f"shared buffers{whose} {_size(2 * published)}",
        *_rank_lines(recipe, raw, num_parameters=num_parameters, published=published, trainer=trainer),
        _rollout_line(
            recipe, raw, engine_device=engine_device, num_parameters=num_parameters, num_trained=num_trained
        ),
    ]


def _rollout_line(
    recipe: Recipe, raw: dict[str, Any], *, engine_device: str, num_parameters: int, num_trained: int
) -> str:
    """What each rollout worker holds, and what it needs besides for a while."""
    number = BYTES[recipe.engine.dtype]
    num_frozen = num_parameters if recipe.lora.is_on else 0
    is_native = recipe.engine.backend == "native"
    is_in_place = is_native and engine_device == "cpu" and recipe.engine.dtype == "float32"
    is_merged = recipe.lora.is_on and not is_native
    own = num_parameters * number if is_merged else (num_frozen + (0 if is_in_place else num_trained)) * number
    packed = num_packed_elements(raw) * number if is_in_place else 0
    # vLLM reserves room for engine.cache_tokens on either device.
    cache = _cache_bytes(recipe, raw, is_used_only=engine_device == "cpu" or not is_native)
    held = [f"{_size(own)} of weights"] if own else []
    held += [f"{_size(packed)} of packed weights"] if packed else []
    held += [f"KV cache up to {_size(cache)}"]
    if is_merged:
        more = f"; {_size(2 * num_parameters * FLOAT32_BYTES)} more to merge the adapter"
    elif is_native:
        # An evaluation shares the base of an adapter, which never changes, and keeps a packed matrix only packed.
        is_kept_twice = is_in_place and not recipe.lora.is_on
        pinned = (num_trained + (num_kept_twice(raw) if is_kept_twice else 0)) * number
        more = f"; while evaluating {_size(pinned)} more, and up to as much cache again"
    else:
        # A vLLM server has one version at a time, and evaluates by holding back the next.
        more = ""
    return f"memory: {' and '.join(held)} per rollout worker{more}"


def _rank_lines(
    recipe: Recipe, raw: dict[str, Any], *, num_parameters: int, published: int, trainer: int
) -> list[str]:
    """What each of several trainer ranks holds of the trainer's memory."""
    num_ranks = recipe.train.num_ranks
    if num_ranks == 1:
        return []
    # Blocks are gathered one at a time, which is little beside the embedding and an untied head.
    num_matrices = 1 if raw.get("tie_word_embeddings") else 2
    gathered = 2 * num_matrices * FLOAT32_BYTES * raw["vocab_size"] * raw["hidden_size"]
    return [
        f"memory: each of {num_ranks} trainer ranks about {_size(trainer // num_ranks)} of the trainer's, and "
        f"{_size(gathered)} while it computes (embedding, head and their gradients); "
        f"{_size(num_parameters * FLOAT32_BYTES)} while it starts; rank 0 {_size(3 * published)} more while a "
        "checkpoint is written"
    ]


def count_parameters(directory: Path) -> int:
    """Numbers in the weights of a model of this shape."""
    return sum(math.prod(shape) for _, parts in stacked_parts(read_config(directory)) for _, shape in parts)


def _cache_bytes(recipe: Recipe, raw: dict[str, Any], *, is_used_only: bool) -> int:
    token_bytes = cached_numbers(raw) * BYTES[recipe.engine.dtype]
    slot_tokens: int = min(recipe.max_sequence_tokens, raw["max_position_embeddings"], recipe.engine.cache_tokens)
    num_tokens = recipe.engine.num_slots * slot_tokens
    return token_bytes * (min(recipe.engine.cache_tokens, num_tokens) if is_used_only else num_tokens)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
