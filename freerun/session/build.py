"""What a run needs from its model and machine: prompts, checks, launcher, cores; `assembly.py` makes the stages.

Each kind of thing a recipe names (a task, a grader, a backend ...) is looked up in one table.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from freerun.backends.backend import find_backend
from freerun.backends.ray.access import check_access, prepare_environment
from freerun.config.recipe import Recipe
from freerun.config.reward import RewardConfig, with_grader
from freerun.config.user_code import is_user_code
from freerun.controller.checkpoint import Checkpoint
from freerun.data.mixture import PromptStream, open_stream
from freerun.data.source import PromptSource
from freerun.data.task_prompt import TaskPrompts
from freerun.data.tokenizer import Tokenizer
from freerun.data.wording import RowUse
from freerun.errors import CheckpointError, ConfigError, ModelError
from freerun.model.adapter_directory import model_config
from freerun.processes.link import Launcher
from freerun.processes.local import LocalLauncher
from freerun.processes.placement import place, rollout_names
from freerun.session.agents import session_data
from freerun.session.core_lending import CoreLending
from freerun.session.devices import check_devices, planned_devices
from freerun.weights.buffers import create_buffers, shared_route


def make_source(recipe: Recipe, tokenizer: Tokenizer, checkpoint: Checkpoint | None = None) -> PromptStream:
    """The stream of prompts, at the checkpoint's position; empty if all prompts come from clients."""
    data, seed = session_data(recipe), recipe.run.seed
    source: PromptStream
    if recipe.online.is_on and not recipe.eval.num_prompts:
        source = PromptSource(TaskPrompts(training=(), held_out=()), tokenizer, config=data, seed=seed)
    else:
        source = open_stream(data, tokenizer, seed=seed, row_use=_row_use(recipe))
    if checkpoint is not None:
        if source.fingerprint != checkpoint.state.data_fingerprint:
            raise CheckpointError(
                f"{checkpoint.directory}: the training data or the tokenizer has changed since it was saved, so "
                "its position in the data means other prompts; restore them, or start a run with another run.name"
            )
        source.cursor = checkpoint.state.cursor
    return source


def _row_use(recipe: Recipe) -> RowUse:
    """Who may read the rows that prompts are made from."""
    if recipe.rollout.runs_sessions:
        return "sessions"
    graders = [part.grader for config in reward_configs(recipe) for part in config.parts]
    return "graders" if any(map(is_user_code, graders)) else "none"


def reward_configs(recipe: Recipe) -> list[RewardConfig]:
    """The reward settings of a recipe: its own, and those of the parts of a mixture."""
    return [with_grader(recipe.reward, grader) for grader in ("", *recipe.data.own_graders)]


def check_model(recipe: Recipe, tokenizer: Tokenizer, directory: Path) -> None:
    """Refuse a model with too few positions, another model's tokenizer, or no support in the backend."""
    config = model_config(directory)
    if recipe.generates:
        check_positions(recipe.longest_sequence_keys, recipe.max_sequence_tokens, directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{directory}: tokenizer.json has token ids up to {tokenizer.vocab_size - 1}, the model only "
            f"{config.vocab_size} rows; the directory mixes two models"
        )
    if recipe.generates:
        backend = find_backend(recipe.engine.backend)
        backend.check_model(directory, find_device=lambda: planned_devices(recipe)["rollout-0"])


def check_positions(keys: str, longest: int, directory: Path) -> None:
    """Refuse sequences that are longer than the model has positions."""
    positions = model_config(directory).max_positions
    if longest > positions:
        raise ConfigError(
            f"config: {keys} = {longest} exceeds the {positions} positions of the model in {directory}; lower it"
        )


def check_backends(recipe: Recipe, *, trains: bool = True) -> None:
    """Before a run starts, refuse what the machine or its packages cannot do."""
    if recipe.generates:
        find_backend(recipe.engine.backend).check(recipe)
    check_access(recipe.runtime)
    if not trains:  # the trainer's devices do not matter
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, device="cpu"))
    check_devices(recipe)


def make_launcher(recipe: Recipe, logs: Path, *, publishes: bool) -> Launcher:
    """The launcher of the run's workers; only a run that trains publishes weights."""
    if recipe.runtime.backend == "ray":
        prepare_environment(recipe.runtime)
        from freerun.backends.ray.cluster import RayLauncher

        return RayLauncher(recipe, logs, publishes=publishes)
    route = None
    if publishes:
        route = shared_route(create_buffers(f"freerun-{recipe.run.name}"), dtype=recipe.engine.dtype)
    return LocalLauncher(logs, place(recipe).seats, weights=route)


def lends_cores(recipe: Recipe) -> bool:
    """Whether the cores of idle rollout workers are offered to the trainer; not if it is on a GPU."""
    # The slowest rank sets the pace, so lending cores to one of them is useless.
    if recipe.runtime.backend != "local" or recipe.train.num_ranks > 1 or recipe.train.num_threads:
        return False
    return not place(recipe).is_crowded


def make_core_lending(recipe: Recipe, offer: Callable[[tuple[int, ...]], None]) -> CoreLending | None:
    """The core lending of a run; None if the cores of each worker are fixed."""
    if not lends_cores(recipe):
        return None
    seats = place(recipe).seats
    return CoreLending(
        trainer_cores=seats["trainer"].cores,
        rollout_cores={name: seats[name].cores for name in rollout_names(recipe)},
        offer=offer,
    )
