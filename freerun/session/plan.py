"""What a run would do: the text of `--dry-run`. Nothing is generated or trained.

It starts a grader process for a moment, because only there can a user's function be imported, and tries it on the
reference answers of some prompts.
"""

import asyncio
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

from freerun.backends.backend import find_backend
from freerun.backends.ray.demand import groups_of
from freerun.config.data import DataConfig
from freerun.config.recipe import Recipe
from freerun.data.demonstrations import SftData
from freerun.data.mixture import PromptStream
from freerun.data.task_prompt import near_copies
from freerun.data.tokenizer import Tokenizer
from freerun.processes.local import LocalLauncher, Seat
from freerun.processes.placement import place, rollout_names, trainer_names
from freerun.session.assembly import make_grader
from freerun.session.build import lends_cores
from freerun.session.costs import describe_costs
from freerun.session.devices import planned_devices
from freerun.session.memory import describe_memory
from freerun.session.preflight import check_setup, read_inputs
from freerun.session.trial import Trial, describe_trials, trial_warnings, try_references


def describe_plan(recipe: Recipe, *, resume: bool = False) -> str:
    """Read and check everything as a run would, and list the workers with their cores and devices."""
    directory = Path(recipe.model.path)
    check_setup(recipe, is_new=not resume)
    inputs = read_inputs(recipe, directory)
    lines, warnings, costs = _sft_lines(inputs.sft), list[str](), list[str]()
    if inputs.source is not None:
        trials = asyncio.run(_try_graders(recipe, inputs.source, inputs.tokenizer))
        lines += [*_data_lines(recipe, inputs.source), *describe_trials(trials)]
        warnings = [*_leak_warnings(inputs.source), *trial_warnings(trials)]
    devices = planned_devices(recipe)
    if inputs.source is not None:
        costs = describe_costs(recipe, directory)
    lines += [
        *_stage_lines(recipe, devices),
        *describe_memory(recipe, directory, engine_device=devices.get("rollout-0")),
        *costs,
        *warnings,
        *_warning_lines(recipe, devices),
    ]
    return "\n".join(["plan", *(f"  {line}" for line in lines)])


async def _try_graders(recipe: Recipe, source: PromptStream, tokenizer: Tokenizer) -> list[Trial]:
    """Start one grader process and try it on reference answers; an error would stop a run at its start."""
    alone = dataclasses.replace(recipe, reward=dataclasses.replace(recipe.reward, num_workers=1))
    with tempfile.TemporaryDirectory(prefix="freerun-plan-") as logs:
        grader = make_grader(alone, LocalLauncher(Path(logs), {}))
        try:
            await grader.start()
            # Only an episode knows which of its texts are graded, if any.
            tried = None if recipe.rollout.episode or recipe.rollout.command else grader
            return await try_references(source, tokenizer, tried, default_grader=recipe.reward.grader)
        finally:
            await grader.close()


def _sft_lines(data: SftData | None) -> list[str]:
    if data is None:
        return []
    return [f"SFT: {data.num_steps} steps{f' on {data.summary}' if data.summary else ''}"]


def _data_lines(recipe: Recipe, source: PromptStream) -> list[str]:
    num_held_out = len(source.held_out(recipe.eval.num_prompts))
    if recipe.online.is_on:
        seconds = recipe.online.feedback_seconds
        return [f"data: live traffic, rated within {seconds:g} s; {num_held_out} prompts held out for evaluation"]
    num_trained = recipe.train.num_steps * recipe.train.prompts_per_step
    lines = [
        f"data: {source.epoch_size} training prompts, {num_held_out} held out for"
        f" evaluation; {recipe.train.num_steps} steps use {num_trained} prompts, "
        f"{num_trained / source.epoch_size:.1f} epochs",
        "data: no held-out prompt is trained on",
    ]
    if recipe.data.mixture:
        lines.append(f"data: a mixture of {_shares(recipe.data)}, each with its own epochs")
    if source.num_too_long:
        lines.append(f"data: {source.num_too_long} prompts exceed data.max_prompt_tokens and are left out")
    return lines


def _leak_warnings(source: PromptStream) -> list[str]:
    prompts = source.prompts()
    copies = near_copies(prompts)  # equal ones were refused before
    if not copies:
        return []
    held_out, trained = copies[0]
    return [
        f"warning: {len(copies)} of {len(prompts.held_out)} held-out prompts differ from a training prompt only "
        f"in case or spaces (such as {held_out.key} and {trained.key}); remove them on one side"
    ]


def _shares(data: DataConfig) -> str:
    weights = data.weights or (1.0,) * len(data.mixture)
    parts = zip(weights, data.mixture, strict=True)
    return ", ".join(f"{weight / sum(weights):.0%} {name}" for weight, name in parts)


def _stage_lines(recipe: Recipe, devices: Mapping[str, str]) -> list[str]:
    where, backend = _seats(recipe), find_backend(recipe.engine.backend)
    rollouts = [
        f"{name}: {backend.describe(recipe.engine, index)}{recipe.engine.num_slots} slots, "
        f"{recipe.engine.dtype} on {devices[name]}, {where[name]}"
        for index, name in enumerate(rollout_names(recipe))
    ]
    is_lent_cores = recipe.generates and lends_cores(recipe) and devices["trainer"] == "cpu"
    borrows = " and those of idle rollout workers" if is_lent_cores else ""
    trainers = [
        f"{name}: {recipe.train.dtype} on {devices[name]}, {where[name]}{borrows}"
        for name in trainer_names(recipe)
    ]
    if not recipe.generates:
        return trainers
    started = (recipe.buffer.max_staleness + 1) * recipe.batch_size
    engine = recipe.engine
    if engine.is_elastic:
        rollouts.append(
            f"rollout workers retire while the trainer is the limit, down to engine.min_workers = "
            f"{engine.min_workers}, and come back when it waits"
        )
    return [
        *rollouts,
        f"training: {recipe.batch_size} trajectories per step ({recipe.train.prompts_per_step} prompts x "
        f"{recipe.sampling.group_size}), {_count(recipe.train.num_minibatches, 'update')}",
        *trainers,
        *_agent_lines(recipe),
        _grader_line(recipe),
        f"staleness: at most {recipe.buffer.max_staleness}; up to {started} trajectories are started before the "
        f'first step ends; buffer.policy = "{recipe.buffer.policy}"',
    ]


def _grader_line(recipe: Recipe) -> str:
    own = [f"{name} by ({part.grader})" for name, part in recipe.data.parts.items() if part.grader]
    line = f"graders: {recipe.reward.num_workers} x ({recipe.reward.grader})"
    return f"{line}; {', '.join(own)}" if own else line


def _agent_lines(recipe: Recipe) -> list[str]:
    rollout = recipe.rollout
    if not rollout.runs_sessions:
        return []
    what = rollout.episode or rollout.command or f"tools {', '.join(rollout.tools)}"
    return [
        f"agents: {_count(rollout.num_workers, 'worker')} with up to {rollout.sessions_per_worker} sessions each "
        f"({what}); a session has at most {_count(rollout.max_turns, 'turn')}, {rollout.max_session_tokens} "
        f"tokens and {rollout.session_seconds:g} s of its own"
    ]


def _seats(recipe: Recipe) -> dict[str, str]:
    """Where each rollout worker and each rank of the trainer will run."""
    if recipe.runtime.backend == "local":
        return {name: _cores(seat) for name, seat in place(recipe).seats.items()}
    # Only the cluster knows which GPUs `device = "auto"` would use.
    groups = groups_of(recipe, has_gpus=False)
    return {name: f"{group.demand} of the Ray cluster" for group in groups for name in group.names}


def _warning_lines(recipe: Recipe, devices: Mapping[str, str]) -> list[str]:
    lines = []
    if recipe.runtime.backend == "local" and place(recipe).is_crowded:
        lines.append("warning: more threads than cores; no process is pinned, and they will slow each other down")
    for key, dtype, names in (
        ("engine.dtype", recipe.engine.dtype, rollout_names(recipe)),
        ("train.dtype", recipe.train.dtype, trainer_names(recipe)),
    ):
        if dtype == "bfloat16" and names and devices[names[0]] == "cpu":
            lines.append(
                f'warning: {key} = "bfloat16" on a CPU; most CPUs compute it ten times slower than float32'
            )
    return lines


def _cores(seat: Seat) -> str:
    where = f"core {', '.join(map(str, seat.cores))}" if seat.cores else "any core"
    return f"{_count(seat.num_threads, 'thread')} on {where}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
