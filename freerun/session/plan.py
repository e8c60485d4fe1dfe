"""What a run would do, in words and numbers, without generating or training: the text of `--dry-run`.

The only process it starts, for a moment, is a grader: whether a user's function can be imported is known only
where it is imported.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

from freerun.backends.ray.demand import groups_of
from freerun.config.data import DataConfig
from freerun.config.recipe import Recipe
from freerun.data.mixture import parts_of
from freerun.data.source import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.model.adapter_directory import model_config
from freerun.model.directory_check import check_directory
from freerun.model.projections import check_rank
from freerun.processes.local import LocalLauncher, Seat
from freerun.processes.placement import place, rollout_names, trainer_names
from freerun.reward.graders import check_graders
from freerun.session.build import check_backends, check_model, check_prompts, lends_cores, make_grader, make_source
from freerun.session.devices import planned_devices
from freerun.session.memory import describe_memory


def describe_plan(recipe: Recipe) -> str:
    """Reads model files and data, checks what can be checked, and says who does what on which core and device."""
    check_backends(recipe)
    check_graders(recipe.reward)
    directory = Path(recipe.model.path)
    check_directory(directory)
    tokenizer = Tokenizer.load(directory)
    check_model(recipe, tokenizer, directory)
    check_rank(recipe.lora, model_config(directory), directory)
    source = make_source(recipe, tokenizer)
    check_prompts(recipe, source)
    asyncio.run(_try_graders(recipe))
    devices = planned_devices(recipe)
    lines = [
        *_data_lines(recipe, source),
        *_stage_lines(recipe, devices),
        *describe_memory(recipe, directory, engine_device=devices[rollout_names(recipe)[0]]),
        *_warning_lines(recipe, devices),
    ]
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


def _stage_lines(recipe: Recipe, devices: Mapping[str, str]) -> list[str]:
    where = _seats(recipe)
    started = (recipe.buffer.max_staleness + 1) * recipe.batch_size
    lines = [
        f"{name}: {_engine(recipe, index)}{recipe.engine.num_slots} slots, "
        f"{recipe.engine.dtype} on {devices[name]}, {where[name]}"
        for index, name in enumerate(rollout_names(recipe))
    ]
    lines.append(
        f"training: {recipe.batch_size} trajectories a step ({recipe.train.prompts_per_step} prompts x "
        f"{recipe.sampling.group_size}), {recipe.train.num_minibatches} updates"
    )
    is_lent_cores = lends_cores(recipe) and devices["trainer"] == "cpu"
    borrows = ", and on those of idle rollout workers" if is_lent_cores else ""
    lines += [
        f"{name}: {recipe.train.dtype} on {devices[name]}, {where[name]}{borrows}"
        for name in trainer_names(recipe)
    ]
    lines.append(f"graders: {recipe.reward.num_workers} x ({recipe.reward.grader})")
    lines.append(
        f"staleness: at most {recipe.buffer.max_staleness}; up to {started} trajectories started ahead of the "
        f"first step, policy {recipe.buffer.policy}"
    )
    return lines


def _seats(recipe: Recipe) -> dict[str, str]:
    """Where each worker that computes will be, in words."""
    if recipe.runtime.backend == "local":
        return {name: _cores(seat) for name, seat in place(recipe).seats.items()}
    # GPUs that a device of auto would take are not known without the cluster.
    groups = groups_of(recipe, has_gpus=False)
    return {name: f"{group.demand} of the Ray cluster" for group in groups for name in group.names}


def _warning_lines(recipe: Recipe, devices: Mapping[str, str]) -> list[str]:
    lines = []
    if recipe.runtime.backend == "local" and place(recipe).is_crowded:
        lines.append(
            "warning: more threads than cores; nothing is pinned, and processes will slow each other down"
        )
    for key, dtype, names in (
        ("engine.dtype", recipe.engine.dtype, rollout_names(recipe)),
        ("train.dtype", recipe.train.dtype, trainer_names(recipe)),
    ):
        if dtype == "bfloat16" and devices[names[0]] == "cpu":
            lines.append(
                f'warning: {key} = "bfloat16" on a CPU; most CPUs compute it ten times slower than float32'
            )
    return lines


def _engine(recipe: Recipe, index: int) -> str:
    if recipe.engine.backend != "vllm":
        return ""
    addresses = recipe.engine.addresses
    return f"the vLLM server at {addresses[index]}, " if addresses else "a vLLM server of its own, "


def _cores(seat: Seat) -> str:
    where = f"core {', '.join(map(str, seat.cores))}" if seat.cores else "any core"
    return f"{seat.num_threads} thread{'s' if seat.num_threads > 1 else ''} on {where}"
