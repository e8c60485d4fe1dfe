"""Puts the stages of a run together: the only place that chooses classes.

`train.py` gives them a lifetime, `controller/controller.py` runs them.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from freerun.backends.ray.access import check_access, prepare_environment
from freerun.backends.vllm.server import CPU_HEAD_SIZES, require_vllm
from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint
from freerun.data.curriculum import Curriculum
from freerun.data.mixture import open_stream
from freerun.data.problem import check_apart
from freerun.data.source import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.errors import CheckpointError, ConfigError, ModelError
from freerun.model.adapter_directory import model_config
from freerun.model.config_file import head_size
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.processes.local import LocalLauncher
from freerun.processes.placement import place, rollout_names, trainer_names
from freerun.protocols import Workflow
from freerun.reward.answers import check_answers
from freerun.reward.function_grader import FunctionGrader, RewardFunction
from freerun.reward.pool import GraderPool
from freerun.rollout.single_turn import SingleTurn
from freerun.session.core_lending import CoreLending
from freerun.session.devices import check_devices, has_cpu_servers
from freerun.types import EngineStats
from freerun.weights.buffers import create_buffers
from freerun.workers.messages import FromRollout, FromTrainer, StartEngine
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

RunGrader = GraderPool | FunctionGrader


def make_source(recipe: Recipe, tokenizer: Tokenizer, checkpoint: Checkpoint | None = None) -> PromptStream:
    """The stream of prompts, at the checkpoint's place in it."""
    source = open_stream(recipe.data, tokenizer, seed=recipe.run.seed)
    if checkpoint is not None:
        if source.fingerprint != checkpoint.state.data_fingerprint:
            raise CheckpointError(
                f"{checkpoint.directory}: the training data or the tokenizer has changed since it was saved, so "
                "its place in the data means other prompts; restore them, or start a new run with --run.name NAME"
            )
        source.cursor = checkpoint.state.cursor
    return source


def check_prompts(recipe: Recipe, source: PromptStream) -> None:
    """Refuse held-out prompts that are trained on, and answers that no grader can read."""
    check_apart(source.problems())
    check_answers(recipe.reward, itertools.chain(source.training(), source.held_out(sys.maxsize)))


def make_curriculum(recipe: Recipe, checkpoint: Checkpoint | None) -> Curriculum:
    """Which problems rest: those that did at the checkpoint."""
    return Curriculum(
        min_pass_rate=recipe.data.min_pass_rate,
        max_pass_rate=recipe.data.max_pass_rate,
        resting=checkpoint.state.resting if checkpoint else {},
    )


def check_model(recipe: Recipe, tokenizer: Tokenizer, directory: Path) -> None:
    """Refuse sequences the model has no positions for, a tokenizer of another one, and heads vLLM cannot serve."""
    config = model_config(directory)
    longest, positions = recipe.max_sequence_tokens, config["max_position_embeddings"]
    if longest > positions:
        raise ConfigError(
            f"config: data.max_prompt_tokens + sampling.max_completion_tokens = {longest} exceeds the {positions} "
            f"positions of the model in {directory}; lower one of them"
        )
    if tokenizer.vocab_size > config["vocab_size"]:
        raise ModelError(
            f"{directory}: tokenizer.json has token ids up to {tokenizer.vocab_size - 1}, the model only "
            f"{config['vocab_size']} rows; the directory mixes two models"
        )
    size = head_size(config)
    if recipe.engine.backend == "vllm" and size not in CPU_HEAD_SIZES and has_cpu_servers(recipe):
        raise ConfigError(
            f"the model in {directory} has attention heads of {size}; vLLM on a CPU serves only heads of "
            f'{", ".join(map(str, CPU_HEAD_SIZES))}; set engine.backend = "native"'
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


def make_workflows(recipe: Recipe, tokenizer: Tokenizer) -> tuple[Workflow, Workflow]:
    """The workflows of training and of evaluation; they share one sequence of request ids."""
    request_ids = itertools.count()
    return (
        make_workflow(recipe, tokenizer, recipe.sampling.group_size, request_ids),
        make_workflow(recipe, tokenizer, recipe.eval.num_samples, request_ids),
    )


def make_workflow(
    recipe: Recipe, tokenizer: Tokenizer, num_samples: int, request_ids: Iterator[int]
) -> SingleTurn:
    return SingleTurn(
        recipe.sampling,
        num_samples=num_samples,
        stop_token_ids=tokenizer.stop_token_ids,
        request_ids=request_ids,
    )


ROLLOUT_MODULES = {"native": "freerun.workers.rollout_worker", "vllm": "freerun.backends.vllm.worker"}
"""What runs in a rollout worker, by `engine.backend`."""


def check_backends(recipe: Recipe, *, trains: bool = True) -> None:
    """Refuse what the machine or its packages cannot do, before there is a run."""
    check_access(recipe.runtime)
    require_vllm(recipe.engine)
    if not trains:  # then nobody asks for the trainer's devices
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, device="cpu"))
    check_devices(recipe)


def make_launcher(recipe: Recipe, logs: Path, *, has_weights: bool) -> Launcher:
    """What starts the run's workers; weights travel only in a run that trains."""
    if recipe.runtime.backend == "ray":
        prepare_environment(recipe.runtime)
        from freerun.backends.ray.cluster import RayLauncher

        return RayLauncher(recipe, logs, paths=[recipe.model.path] if has_weights else [])
    buffers = create_buffers(f"freerun-{recipe.run.name}") if has_weights else ()
    return LocalLauncher(logs, place(recipe).seats, weight_buffers=buffers)


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
    has_weights: bool,
    on_report: Callable[[str, EngineStats], None],
    on_death: Callable[[str, str, bool], None],
    on_busy: Callable[[str, bool], None] = lambda worker, is_busy: None,
) -> RolloutPool:
    """Rollout workers; those that get no weights by publication read them from the model directory."""
    names, module = rollout_names(recipe), ROLLOUT_MODULES[recipe.engine.backend]

    async def spawn(index: int) -> Link[FromRollout]:
        job = WorkerJob(names[index], "rollout", module, has_weights=has_weights)
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
    on_progress: Callable[[str], None],
    on_cores: Callable[[tuple[int, ...]], None] = lambda cores: None,
) -> TrainerClient:
    """The trainer's processes, one for each rank, their model not yet loaded."""
    ranks: list[Link[FromTrainer]] = []
    try:
        for rank, name in enumerate(trainer_names(recipe)):
            # Rank 0 publishes for all.
            job = WorkerJob(name, "trainer", "freerun.workers.train_worker", has_weights=rank == 0)
            ranks.append(await launcher.launch(job, FromTrainer))
    except BaseException:
        for link in ranks:
            link.kill()
        raise
    return TrainerClient(ranks, config=recipe.runtime, on_progress=on_progress, on_cores=on_cores)


def lends_cores(recipe: Recipe) -> bool:
    """Whether the cores of idle rollout workers are offered to the trainer; one on a GPU takes up none."""
    # Ranks are as fast as the slowest: to lend one of them cores is no use.
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
