"""Estimates the memory of a run: weights, optimizer state and KV cache, without activations.

trainer          float32 weights, gradients and two moments; in bfloat16 also the weights it computes with
shared buffers   two versions of what is published, in the engine's dtype (adapters in float32), in the CPU's
                 memory; on Ray on each node
rollout worker   what its backend says, and a KV cache in the engine's dtype
"""

import math
from pathlib import Path

from freerun.backends.backend import ModelSize, find_backend
from freerun.config.engine import BYTES
from freerun.config.recipe import Recipe
from freerun.model.adapter_directory import model_config, num_adapter_parameters
from freerun.model.families import stacked_parts

FLOAT32_BYTES = BYTES["float32"]


def describe_memory(recipe: Recipe, directory: Path, *, engine_device: str | None) -> list[str]:
    """Lines for the plan; `engine_device` is None for SFT alone."""
    size = model_size(recipe, directory)
    published = size.num_trained * (FLOAT32_BYTES if size.num_adapter else BYTES[recipe.engine.dtype])
    frozen = size.num_parameters if size.num_adapter else 0
    trainer = (frozen + 4 * size.num_trained) * FLOAT32_BYTES
    parts = "weights, gradients, moments"
    if recipe.train.dtype == "bfloat16":
        trainer += (size.num_parameters + size.num_adapter) * BYTES["bfloat16"]
        parts += " in float32, weights again in bfloat16"
    num_ranks = recipe.train.num_ranks
    each = f", about {size_text(trainer // num_ranks)} on each of {num_ranks} ranks" if num_ranks > 1 else ""
    whose = " on each node of Ray" if recipe.runtime.backend == "ray" else ""
    buffers = f", two shared buffers{whose} {size_text(2 * published)}" if engine_device is not None else ""
    lines = [
        f"memory: weights {size_text(size.num_parameters * FLOAT32_BYTES)}; trainer about {size_text(trainer)} "
        f"({parts}){each}{buffers}",
    ]
    if engine_device is not None:
        lines.append(_rollout_line(recipe, size, engine_device))
    if size.num_adapter:
        lines.insert(
            0,
            f"adapter: rank {recipe.lora.rank} on {', '.join(recipe.lora.targets)}; trains and publishes "
            f"{size.num_adapter:,} parameters ({size_text(published)}), the base is frozen",
        )
    return lines


def _rollout_line(recipe: Recipe, size: ModelSize, device: str) -> str:
    backend = find_backend(recipe.engine.backend)
    held = [f"{noun} {size_text(num)}" for noun, num in backend.memory(recipe, size, device=device) if num]
    cache_tokens = backend.cache_tokens(recipe, size, device=device)
    cache = cache_tokens * size.cached_per_token * BYTES[recipe.engine.dtype]
    return f"memory of each rollout worker: {', '.join([*held, f'KV cache up to {size_text(cache)}'])}"


def model_size(recipe: Recipe, directory: Path) -> ModelSize:
    """Number of parameters of the model and its adapter, and the size of its cache."""
    config = model_config(directory)
    return ModelSize(
        num_parameters=count_parameters(directory),
        num_adapter=num_adapter_parameters(recipe.lora, config),
        cached_per_token=config.cached_per_token,
        max_positions=config.max_positions,
    )


def count_parameters(directory: Path) -> int:
    """Number of parameters of the model in this directory."""
    return sum(math.prod(shape) for _, parts in stacked_parts(model_config(directory)) for _, shape in parts)


def size_text(num_bytes: int) -> str:
    """A readable size, such as 1.5 GB or 20.0 MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
