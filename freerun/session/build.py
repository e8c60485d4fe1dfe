"""Assembles the stages of a run. What a recipe names (a task, a grader, a backend ...) comes from one table each.

`train.py` gives them a lifetime, `controller/controller.py` runs them.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from freerun.backends.backend import find_backend
from freerun.backends.ray.access import check_access, prepare_environment
from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint
from freerun.data.curriculum import Curriculum
from freerun.data.mixture import PromptStream, open_stream
from freerun.data.tokenizer import Tokenizer
from freerun.errors import CheckpointError, ConfigError, ModelError
from freerun.model.adapter_directory import model_config
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.processes.local import LocalLauncher
from freerun.processes.placement import place, rollout_names, trainer_names
from freerun.reward.pool import GraderPool
from freerun.reward.user_function import FunctionGrader, RewardFunction
from freerun.session.agents import session_data
from freerun.session.core_lending import CoreLending
from freerun.session.devices import check_devices, planned_devices
from freerun.types import Doing, EngineStats
from freerun.weights.buffers import create_buffers, shared_route
from freerun.workers.messages import FromRollout, FromTrainer, StartEngine
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

RunGrader = GraderPool | FunctionGrader


def make_source(recipe: Recipe, tokenizer: Tokenizer, checkpoint: Checkpoint | None = None) -> PromptStream:
    """The stream of prompts, at the checkpoint's position."""
    plays_sessions = recipe.rollout.runs_sessions
    source = open_stream(session_data(recipe), tokenizer, seed=recipe.run.seed, keeps_rows=plays_sessions)
    if checkpoint is not None:
        if source.fingerprint != checkpoint.state.data_fingerprint:
            raise CheckpointError(
                f"{checkpoint.directory}: the training data or the tokenizer has changed since it was saved, so "
                "its place in the data means other prompts; restore them, or start a run with another run.name"
            )
        source.cursor = checkpoint.state.cursor
    return source


def make_curriculum(recipe: Recipe, checkpoint: Checkpoint | None) -> Curriculum:
    """Which prompts rest: those that did at the checkpoint."""
    return Curriculum(
        min_pass_rate=recipe.data.min_pass_rate,
        max_pass_rate=recipe.data.max_pass_rate,
        resting=checkpoint.state.resting if checkpoint else {},
    )


def check_model(recipe: Recipe, tokenizer: Tokenizer, directory: Path) -> None:
    """Refuse a model with too few positions, with another model's tokenizer, or that the backend cannot serve."""
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


def make_gate_and_buffer(recipe: Recipe, checkpoint: Checkpoint | None) -> tuple[StalenessGate, TrajectoryBuffer]:
    """Gate and buffer as they were at the checkpoint, or new ones."""
    buffer = TrajectoryBuffer(
        groups_per_batch=recipe.train.prompts_per_step,
        max_staleness=recipe.buffer.max_staleness,
        policy=recipe.buffer.policy,
        filter_zero_variance=recipe.objective.dynamic_sampling,
    )
    if checkpoint is not None:
        buffer.restore(checkpoint.state.buffer)
    gate = StalenessGate(
        batch_size=recipe.batch_size,
        max_staleness=recipe.buffer.max_staleness,
        version=buffer.version,
        num_buffered=buffer.counts.ready * recipe.sampling.group_size,
    )
    return gate, buffer


def check_backends(recipe: Recipe, *, trains: bool = True) -> None:
    """Refuse what the machine or its packages cannot do, before a run starts."""
    if recipe.generates:
        find_backend(recipe.engine.backend).check(recipe)
    check_access(recipe.runtime)
    if not trains:  # the trainer's devices do not matter
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, device="cpu"))
    check_devices(recipe)


def make_launcher(recipe: Recipe, logs: Path, *, publishes: bool) -> Launcher:
    """What starts the run's workers; only a run that trains publishes weights."""
    if recipe.runtime.backend == "ray":
        prepare_environment(recipe.runtime)
        from freerun.backends.ray.cluster import RayLauncher

        return RayLauncher(recipe, logs, publishes=publishes)
    route = shared_route(create_buffers(f"freerun-{recipe.run.name}")) if publishes else None
    return LocalLauncher(logs, place(recipe).seats, weights=route)


def make_grader(
    recipe: Recipe,
    launcher: Launcher,
    on_death: Callable[[str, str, bool], None] = lambda worker, reason, is_restarted: None,
    *,
    function: RewardFunction | None = None,
) -> RunGrader:
    """Grader processes, or threads of this one for a function that only it has."""
    if function is not None:
        max_completion_tokens = recipe.sampling.max_completion_tokens
        return FunctionGrader(function, recipe.reward, max_completion_tokens=max_completion_tokens)
    return GraderPool(
        recipe.reward,
        max_completion_tokens=recipe.sampling.max_completion_tokens,
        launcher=launcher,
        start_seconds=recipe.runtime.start_seconds,
        on_death=on_death,
    )


def make_rollout_pool(
    recipe: Recipe,
    launcher: Launcher,
    *,
    model_directory: Path,
    on_report: Callable[[str, EngineStats], None],
    on_death: Callable[[str, str, bool], None],
    on_busy: Callable[[str, bool], None] = lambda worker, is_busy: None,
) -> RolloutPool:
    """Rollout workers; without published weights they read those of the model directory."""
    names, runs_programs = rollout_names(recipe), find_backend(recipe.engine.backend).runs_programs
    module = f"freerun.workers.{'guarded_' if runs_programs else ''}rollout_worker"

    async def spawn(index: int) -> Link[FromRollout]:
        job = WorkerJob(names[index], "rollout", module, weights=launcher.weights)
        return await launcher.launch(job, FromRollout)

    return RolloutPool(
        spawn=spawn,
        start_message=StartEngine(
            model_directory=str(model_directory),
            engine=recipe.engine,
            max_sequence_tokens=recipe.max_sequence_tokens,
            seed=recipe.run.seed,
            lora=recipe.lora,
            base_directory=recipe.model.path,
            weights=launcher.weights,
        ),
        num_workers=recipe.engine.num_workers,
        config=recipe.runtime,
        on_report=on_report,
        on_death=on_death,
        on_busy=on_busy,
    )


async def make_trainer(
    recipe: Recipe,
    launcher: Launcher,
    *,
    on_progress: Callable[[Doing], None],
    on_cores: Callable[[tuple[int, ...]], None] = lambda cores: None,
) -> TrainerClient:
    """The trainer's processes, one per rank, without a model yet."""
    ranks: list[Link[FromTrainer]] = []
    try:
        for rank, name in enumerate(trainer_names(recipe)):
            # Rank 0 publishes for all.
            route = launcher.weights if rank == 0 else None
            job = WorkerJob(name, "trainer", "freerun.workers.train_worker", weights=route)
            ranks.append(await launcher.launch(job, FromTrainer))
    except BaseException:
        for link in ranks:
            link.kill()
        raise
    return TrainerClient(ranks, config=recipe.runtime, on_progress=on_progress, on_cores=on_cores)


def lends_cores(recipe: Recipe) -> bool:
    """Whether the cores of idle rollout workers are offered to the trainer; one on a GPU takes up none."""
    # Ranks are as fast as the slowest: lending cores to one of them is useless.
    if recipe.runtime.backend != "local" or recipe.train.num_ranks > 1 or recipe.train.num_threads:
        return False
    return not place(recipe).is_crowded


def make_core_lending(recipe: Recipe, offer: Callable[[tuple[int, ...]], None]) -> CoreLending | None:
    """Who lends cores to the trainer; None where the cores of each worker are fixed."""
    if not lends_cores(recipe):
        return None
    seats = place(recipe).seats
    return CoreLending(
        trainer_cores=seats["trainer"].cores,
        rollout_cores={name: seats[name].cores for name in rollout_names(recipe)},
        offer=offer,
    )
