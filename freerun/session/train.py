"""A training run: opens its run directory and listeners, starts its workers, runs the controller.

    run directory ─► listeners ─► workers ─► SFT ─► controller

No process is left behind: workers are killed on the way out, and die with this process if it is killed itself.
What a run does at its start, its end and on a signal is in `lifetime.py`.
"""

import asyncio
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint, drop_optimizers
from freerun.controller.controller import Controller
from freerun.controller.stages import Stages
from freerun.data.demonstrations import SftData
from freerun.data.mixture import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError
from freerun.events.events import (
    CoresMoved,
    EngineReport,
    Notice,
    RunFinished,
    RunOutcome,
    WorkerDied,
)
from freerun.processes.link import Launcher
from freerun.session.agents import Workflows, make_agents
from freerun.session.attachments import Attachments
from freerun.session.build import (
    RunGrader,
    make_core_lending,
    make_curriculum,
    make_gate_and_buffer,
    make_grader,
    make_launcher,
    make_rollout_pool,
    make_trainer,
)
from freerun.session.core_lending import CoreLending
from freerun.session.lifetime import Lifetime
from freerun.session.listeners import open_listeners
from freerun.session.preflight import Inputs, check_setup, read_inputs, readable_rows, rl_checkpoint
from freerun.session.run_directory import RunDirectory, keep_rows, open_run, write_config
from freerun.session.saving import Saver
from freerun.session.sft import SftStage
from freerun.types import Doing, EngineStats, WeightRoute
from freerun.workers.agent_pool import AgentPool
from freerun.workers.messages import StartTrainer
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

EXIT_CODES: dict[RunOutcome, int] = {"finished": 0, "interrupted": 130, "failed": 1}


def run_training(recipe: Recipe, *, resume: bool) -> int:
    """Train by the recipe and return the exit code; the summary says where the model is."""
    return EXIT_CODES[train_to_end(recipe, resume=resume).outcome]


def train_to_end(recipe: Recipe, *, resume: bool, attached: Attachments | None = None) -> RunFinished:
    """Train by the recipe, with what the caller attaches, and return how it ended."""
    attached = attached or Attachments()
    inputs, has_reward = None, attached.reward is not None
    if resume:
        check_setup(recipe, is_new=False, has_reward=has_reward)
    else:
        with readable_rows(recipe, attached.rows) as readable:
            check_setup(readable, has_reward=has_reward)
            inputs = read_inputs(readable, Path(recipe.model.path))
    with open_run(recipe, resume=resume) as (run, checkpoint):
        if attached.rows is not None:
            keep_rows(run, attached.rows, resume=resume)
        if checkpoint is not None and checkpoint.state.version > recipe.train.num_steps:
            raise ConfigError(
                f"config: train.num_steps = {recipe.train.num_steps} is less than the {checkpoint.state.version} "
                "steps that the run has made; raise it"
            )
        if inputs is None:
            inputs = read_inputs(recipe, run.model, checkpoint=checkpoint)
            write_config(run, recipe)  # accepted: the next --resume starts from it
        with open_listeners(recipe, run.path, attached.listeners) as listeners:
            if resume and checkpoint is not None:
                listeners.rewind(checkpoint.state.version, seconds=checkpoint.state.seconds)
            elif resume:
                listeners.rewind(0)

            async def run_to_end() -> RunFinished:
                life = Lifetime(recipe, run.path, listeners, checkpoint=checkpoint, stop=attached.stop)
                return await life.run(TrainingSession(life, recipe, run, checkpoint, inputs, attached).run())

            return asyncio.run(run_to_end())


class TrainingSession:
    """The stages of a training run and the processes under them, for as long as it lives."""

    def __init__(
        self,
        life: Lifetime,
        recipe: Recipe,
        run: RunDirectory,
        checkpoint: Checkpoint | None,
        inputs: Inputs,
        attached: Attachments,
    ) -> None:
        self._life = life
        self._recipe = recipe
        self._run = run
        self._checkpoint = checkpoint
        self._inputs = inputs
        self._attached = attached
        self._pool: RolloutPool | None = None
        self._grader: RunGrader | None = None
        self._agents: AgentPool | None = None
        self._lending: CoreLending | None = None

    async def run(self) -> None:
        """Train to the end, or until a stop is requested."""
        await self._run_stages()
        if not self._life.is_stopping and not self._recipe.checkpoint.keep_optimizer:
            drop_optimizers(self._run.checkpoints)

    async def _run_stages(self) -> None:
        recipe, tokenizer, source = self._recipe, self._inputs.tokenizer, self._inputs.source
        launcher = make_launcher(recipe, self._run.logs, publishes=source is not None)
        if source is not None:
            if source.num_too_long:
                self._note(f"left out {source.num_too_long} prompts over data.max_prompt_tokens")
            self._make_generation(launcher)
        trainer = await make_trainer(
            recipe,
            launcher,
            on_progress=lambda doing: self._life.act("trainer", doing),
            on_cores=self._on_trainer_cores,
        )
        try:
            self._lending = make_core_lending(recipe, trainer.use_cores) if source else None
            await self._start_workers(trainer, launcher.weights)
            if self._inputs.sft is not None:
                await self._run_sft(self._inputs.sft, trainer)
            if source is not None and not self._life.is_stopping:
                await self._run_rl(source, tokenizer, trainer)
        finally:
            workers = (trainer, self._pool, self._grader, self._agents)
            await asyncio.gather(*(worker.close() for worker in workers if worker))
            await launcher.close()

    def _make_generation(self, launcher: Launcher) -> None:
        self._grader = make_grader(self._recipe, launcher, self._on_worker_death, function=self._attached.reward)
        self._pool = make_rollout_pool(
            self._recipe,
            launcher,
            model_directory=self._run.model,
            on_report=self._on_engine_report,
            on_death=self._on_worker_death,
            on_busy=self._on_rollout_busy,
        )
        self._agents = make_agents(
            self._recipe,
            self._inputs.tokenizer,
            launcher,
            model_directory=self._run.model,
            on_death=self._on_worker_death,
        )

    async def _start_workers(self, trainer: TrainerClient, weights: WeightRoute | None) -> None:
        self._life.act("controller", Doing("starting", "the workers"))
        recipe, checkpoint = self._recipe, self._checkpoint
        saved, has_adapter = checkpoint.model_directory if checkpoint else None, recipe.lora.is_on
        start = StartTrainer(
            model_directory=recipe.model.path if has_adapter or saved is None else str(saved),
            adapter_directory=str(saved) if has_adapter and saved else "",
            lora=recipe.lora,
            seed=recipe.run.seed,
            companions_directory=str(self._run.model),
            train=recipe.train,
            objective=recipe.objective,
            temperature=recipe.sampling.temperature,
            max_completion_tokens=recipe.sampling.max_completion_tokens,
            is_truncated=recipe.sampling.top_k > 0 or recipe.sampling.top_p < 1,
            version=self._life.version,
            optimizer_file=str(checkpoint.optimizer_file) if checkpoint else "",
            is_in_sft=checkpoint is not None and checkpoint.state.sft is not None,
            reference_directory=str(self._run.reference) if recipe.objective.kl_coefficient > 0 else "",
            weights=weights,
            num_engine_gpus=recipe.engine.num_workers * recipe.engine.num_gpus if recipe.generates else 0,
            borrows_cores=self._lending is not None,
        )
        others = asyncio.gather(*(w.start() for w in (self._pool, self._grader, self._agents) if w))
        ready, _ = await asyncio.gather(trainer.start(start), others)
        self._note(f"the trainer is ready: it trains {ready.num_trained:,} of {ready.num_parameters:,} parameters")

    async def _run_sft(self, data: SftData, trainer: TrainerClient) -> None:
        """Leaves a checkpoint unless RL follows, which saves version 0 itself."""
        state = self._checkpoint.state.sft if self._checkpoint else None
        save = self._make_saver(trainer)
        stage = SftStage(self._recipe, data, trainer, life=self._life, save=save, state=state)
        if data.summary:
            self._note(f"SFT: {data.summary}")
        pool = self._pool
        await stage.run(must_stop=lambda: self._life.is_stopping or (pool is not None and pool.is_lost))
        if self._life.is_stopping or stage.step < data.num_steps or pool is None:
            await stage.save()
        if pool is not None:
            pool.raise_loss()

    def _make_saver(self, trainer: TrainerClient) -> Saver:
        return Saver(self._life, self._run.checkpoints, trainer.save, keep=self._recipe.checkpoint.keep)

    async def _run_rl(self, source: PromptStream, tokenizer: Tokenizer, trainer: TrainerClient) -> None:
        assert self._pool is not None
        assert self._grader is not None
        gate, buffer = make_gate_and_buffer(self._recipe, rl_checkpoint(self._checkpoint))
        workflows = Workflows(self._recipe, tokenizer, self._agents)
        stages = Stages(
            source=source,
            workflow=workflows.training(),
            evaluation_workflow=workflows.evaluation(),
            generator=self._pool,
            grader=self._grader,
            gate=gate,
            buffer=buffer,
            trainer=trainer,
            curriculum=make_curriculum(self._recipe, rl_checkpoint(self._checkpoint)),
        )
        controller = Controller(
            self._recipe,
            stages,
            emit=self._life.emit,
            save_checkpoint=self._make_saver(trainer),
            lost_workers=[w.wait_for_loss() for w in (self._pool, trainer, self._agents) if w is not None],
            version=self._life.version,
            seconds=self._life.seconds,
        )
        self._life.act("controller", Doing("running"))
        self._life.on_stop(controller.request_stop)
        await controller.run()

    def _note(self, text: str) -> None:
        self._life.emit(Notice(seconds=self._life.seconds, text=text))

    # ---- what happens ---------------------------------------------------------------------------

    def _on_engine_report(self, worker: str, stats: EngineStats) -> None:
        self._life.emit(EngineReport(seconds=self._life.seconds, worker=worker, stats=stats))
        self._life.act(worker, _doing(stats))
        for pool in (self._grader, self._agents):
            for name, doing in pool.activities().items() if pool else ():
                self._life.act(name, doing)

    def _on_rollout_busy(self, worker: str, is_busy: bool) -> None:
        if self._lending is not None:
            self._lending.note(worker, is_busy=is_busy)

    def _on_trainer_cores(self, cores: tuple[int, ...]) -> None:
        assert self._lending is not None  # only it offers cores
        num_borrowed = len(cores) - len(self._lending.trainer_cores)
        self._life.emit(CoresMoved(seconds=self._life.seconds, cores=cores, num_borrowed=num_borrowed))

    def _on_worker_death(self, worker: str, reason: str, is_restarted: bool) -> None:
        self._life.emit(
            WorkerDied(seconds=self._life.seconds, worker=worker, reason=reason, is_restarted=is_restarted)
        )


def _doing(stats: EngineStats) -> Doing:
    if stats.num_running:
        return Doing("generating", num_done=stats.num_running)
    if stats.num_evaluating:
        return Doing("evaluating", num_done=stats.num_evaluating)
    return Doing("waiting", "the gate to admit a rollout")
