"""Assembles the stages of a recipe on any launcher: processes of this machine, Ray, or a simulation.

`train.py` opens and closes them, `controller/controller.py` runs them.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from freerun.backends.backend import find_backend
from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import Recipe
from freerun.controller.balance import WorkerBalance
from freerun.controller.checkpoint import Checkpoint
from freerun.controller.stages import Stages
from freerun.data.curriculum import Curriculum
from freerun.data.live_prompts import LivePrompts
from freerun.data.mixture import PromptStream
from freerun.events.events import Listener
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.processes.placement import rollout_names, trainer_names
from freerun.protocols import Grader, Trainer, VersionedGenerator, Workflow
from freerun.reward.pool import GraderPool
from freerun.reward.user_function import FunctionGrader, RewardFunction
from freerun.types import Doing, EngineStats, WeightRoute
from freerun.workers.agent_pool import AgentPool
from freerun.workers.messages import FromRollout, FromTrainer, Loaded, StartEngine
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

RunGrader = GraderPool | FunctionGrader


def make_stages(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    *,
    source: PromptStream | LivePrompts,
    workflow: Workflow,
    evaluation_workflow: Workflow,
    generator: VersionedGenerator,
    grader: Grader,
    trainer: Trainer,
) -> Stages:
    """The stages of a run, with gate, buffer and curriculum as they were at the checkpoint, or new ones."""
    gate, buffer = make_gate_and_buffer(recipe, checkpoint)
    return Stages(
        source=source,
        workflow=workflow,
        evaluation_workflow=evaluation_workflow,
        generator=generator,
        grader=grader,
        gate=gate,
        buffer=buffer,
        trainer=trainer,
        curriculum=_make_curriculum(recipe, checkpoint),
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
        ahead=checkpoint.state.ahead if checkpoint is not None and recipe.keeps_fresh else None,
    )
    return gate, buffer


def _make_curriculum(recipe: Recipe, checkpoint: Checkpoint | None) -> Curriculum:
    """The curriculum, with the prompts that rested at the checkpoint."""
    return Curriculum(
        min_pass_rate=recipe.data.min_pass_rate,
        max_pass_rate=recipe.data.max_pass_rate,
        resting=checkpoint.state.resting if checkpoint else {},
    )


def make_grader(
    recipe: Recipe,
    launcher: Launcher,
    on_death: Callable[[str, str, bool], None] = lambda worker, reason, is_restarted: None,
    *,
    function: RewardFunction | None = None,
) -> RunGrader:
    """Grader processes, or threads of this process for a function that exists only here."""
    if function is not None:
        max_completion_tokens = recipe.sampling.max_completion_tokens
        return FunctionGrader(
            function,
            recipe.reward,
            max_completion_tokens=max_completion_tokens,
            judges_sessions=recipe.rollout.runs_sessions,
        )
    return GraderPool(
        recipe.reward,
        max_completion_tokens=recipe.sampling.max_completion_tokens,
        launcher=launcher,
        start_seconds=recipe.runtime.start_seconds,
        on_death=on_death,
        own_graders=recipe.data.own_graders,
        judges_sessions=recipe.rollout.runs_sessions,
    )


def engine_start(recipe: Recipe, model_directory: Path, weights: WeightRoute | None) -> StartEngine:
    """The start message for an engine of the run."""
    return StartEngine(
        model_directory=str(model_directory),
        engine=recipe.engine,
        max_sequence_tokens=recipe.max_sequence_tokens,
        seed=recipe.run.seed,
        lora=recipe.lora,
        base_directory=recipe.model.path,
        weights=weights,
    )


def make_rollout_pool(
    recipe: Recipe,
    launcher: Launcher,
    *,
    model_directory: Path,
    on_report: Callable[[str, EngineStats], None],
    on_death: Callable[[str, str, bool], None],
    on_busy: Callable[[str, bool], None] = lambda worker, is_busy: None,
    on_doing: Callable[[str, Doing], None] = lambda worker, doing: None,
    on_loaded: Callable[[str, Loaded], None] = lambda worker, loaded: None,
) -> RolloutPool:
    """The rollout workers; without published weights they read those of the model directory."""
    names, runs_programs = rollout_names(recipe), find_backend(recipe.engine.backend).runs_programs
    module = f"freerun.workers.{'guarded_' if runs_programs else ''}rollout_worker"

    async def spawn(index: int) -> Link[FromRollout]:
        job = WorkerJob(names[index], "rollout", module, weights=launcher.weights)
        return await launcher.launch(job, FromRollout)

    return RolloutPool(
        spawn=spawn,
        start_message=engine_start(recipe, model_directory, launcher.weights),
        num_workers=recipe.engine.num_workers,
        config=recipe.runtime,
        on_report=on_report,
        on_death=on_death,
        on_busy=on_busy,
        on_doing=on_doing,
        on_loaded=on_loaded,
    )


def make_balance(recipe: Recipe, pool: RolloutPool, emit: Listener) -> Listener:
    """A listener that adjusts the number of rollout workers during the run; does nothing without `min_workers`."""
    engine = recipe.engine
    if not engine.is_elastic:
        return lambda event: None
    return WorkerBalance(pool, fewest=engine.min_workers, most=engine.num_workers, emit=emit)


async def make_trainer(
    recipe: Recipe,
    launcher: Launcher,
    *,
    on_progress: Callable[[Doing], None],
    on_cores: Callable[[tuple[int, ...]], None] = lambda cores: None,
) -> TrainerClient:
    """The trainer's processes, one per rank, not started yet."""
    ranks: list[Link[FromTrainer]] = []
    try:
        for rank, name in enumerate(trainer_names(recipe)):
            # Rank 0 publishes for all ranks.
            route = launcher.weights if rank == 0 else None
            job = WorkerJob(name, "trainer", "freerun.workers.train_worker", weights=route)
            ranks.append(await launcher.launch(job, FromTrainer))
    except BaseException:
        for link in ranks:
            link.kill()
        raise
    return TrainerClient(ranks, config=recipe.runtime, on_progress=on_progress, on_cores=on_cores)


def wait_for_losses(
    trainer: TrainerClient, pool: RolloutPool, grader: RunGrader, agents: AgentPool | None = None
) -> list[Coroutine[Any, Any, None]]:
    """Coroutines that raise when a worker that the run needs is lost and cannot be replaced."""
    workers = (trainer, pool, grader if isinstance(grader, GraderPool) else None, agents)
    return [worker.wait_for_loss() for worker in workers if worker is not None]
