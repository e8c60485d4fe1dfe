"""A training run: opens its run directory and listeners, starts its workers, runs the controller.

    run directory ─► listeners ─► workers ─► SFT ─► controller

No process is left behind: workers are killed when this process ends, or die with it if it is killed. `lifetime.py`
handles the start and end of a run, and signals.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint, drop_optimizers, remove_old
from freerun.controller.controller import Controller
from freerun.data.demonstrations import SftData
from freerun.data.live_prompts import LivePrompts
from freerun.data.mixture import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.errors import EXIT_INTERRUPTED, ConfigError
from freerun.events.events import (
    AnyEvent,
    CoresMoved,
    EngineLoaded,
    EngineReport,
    EvalRow,
    GraderReport,
    Notice,
    RunFinished,
    RunOutcome,
    WeightsLoaded,
    WorkerDied,
)
from freerun.processes.link import Launcher
from freerun.processes.supervision import Supervisor
from freerun.session.agents import Workflows, make_agents
from freerun.session.assembly import (
    RunGrader,
    make_balance,
    make_grader,
    make_rollout_pool,
    make_stages,
    make_trainer,
    wait_for_losses,
)
from freerun.session.attachments import Attachments
from freerun.session.build import make_core_lending, make_launcher
from freerun.session.core_lending import CoreLending
from freerun.session.kept_versions import KeptVersions, past_evals
from freerun.session.lifetime import Lifetime
from freerun.session.listeners import open_listeners
from freerun.session.live_server import LiveServer, check_traffic
from freerun.session.long_lived import long_lived_objects
from freerun.session.page import RunPage
from freerun.session.preflight import Inputs, check_setup, read_inputs, readable_rows, rl_checkpoint
from freerun.session.process_watch import ProcessWatch
from freerun.session.reporters import open_reporters
from freerun.session.run_directory import RunDirectory, keep_rows, open_run, write_config
from freerun.session.saving import Saver
from freerun.session.sft import SftStage
from freerun.session.trainer_start import trainer_start
from freerun.types import Doing, EngineStats, WeightRoute
from freerun.workers.agent_pool import AgentPool
from freerun.workers.messages import Loaded
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

EXIT_CODES: dict[RunOutcome, int] = {"finished": 0, "interrupted": EXIT_INTERRUPTED, "failed": 1}


def run_training(recipe: Recipe, *, resume: bool) -> int:
    """Train by the recipe and return the exit code; the summary says where the model is."""
    return EXIT_CODES[train_to_end(recipe, resume=resume).outcome]


def train_to_end(recipe: Recipe, *, resume: bool, attached: Attachments | None = None) -> RunFinished:
    """Train by the recipe, with what the caller attaches, and return how the run ended."""
    attached = attached or Attachments()
    check_traffic(recipe, attached.live_key)
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
            write_config(run, recipe)  # accepted: the next --resume uses this recipe
        with open_listeners(recipe, run.path, attached.listeners) as listeners:
            if resume and checkpoint is not None:
                listeners.rewind(checkpoint.state.version, seconds=checkpoint.state.seconds)
            elif resume:
                listeners.rewind(0)

            async def run_to_end() -> RunFinished:
                life = Lifetime(recipe, run.path, listeners, checkpoint=checkpoint, stop=attached.stop)
                page = RunPage(recipe.page, run)
                session = TrainingSession(life, recipe, run, checkpoint, inputs, attached)
                try:
                    return await life.run(session.run(page))
                finally:
                    await page.close(listeners.flush)

            with open_reporters(recipe, run.path, listeners):
                return asyncio.run(run_to_end())


class TrainingSession:
    """The stages of a training run and their worker processes."""

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
        self._live: LiveServer | None = None

    async def run(self, page: RunPage) -> None:
        """Train to the end, or until a stop is requested."""
        page.open(self._life.emit, self._life.seconds)
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
        watching: asyncio.Task[None] | None = None
        try:
            self._lending = make_core_lending(recipe, trainer.use_cores) if source else None
            await self._start_workers(trainer, launcher.weights)
            watching = asyncio.create_task(self._watch_processes(launcher))
            if self._inputs.sft is not None:
                await self._run_sft(self._inputs.sft, trainer)
            if source is not None and not self._life.is_stopping:
                await self._run_rl(source, tokenizer, trainer)
        finally:
            if self._live is not None:
                await self._live.close()
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
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
            on_doing=self._life.act,
            on_loaded=self._on_engine_loaded,
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
        start = trainer_start(
            self._recipe,
            self._checkpoint,
            companions=self._run.model,
            reference=self._run.reference,
            weights=weights,
            borrows_cores=self._lending is not None,
        )
        others = asyncio.gather(*(w.start() for w in (self._pool, self._grader, self._agents) if w))
        ready, _ = await asyncio.gather(trainer.start(start), others)
        self._note(f"the trainer is ready: it trains {ready.num_trained:,} of {ready.num_parameters:,} parameters")

    async def _run_sft(self, data: SftData, trainer: TrainerClient) -> None:
        """Run SFT; leaves a checkpoint unless RL follows, which saves version 0 itself."""
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

    def _make_saver(self, trainer: TrainerClient, kept: KeptVersions | None = None) -> Saver:
        keep = self._recipe.checkpoint.keep
        return Saver(self._life, self._run.checkpoints, trainer.save, keep=keep, kept=kept)

    async def _run_rl(self, source: PromptStream, tokenizer: Tokenizer, trainer: TrainerClient) -> None:
        assert self._pool is not None
        assert self._grader is not None
        workflows = Workflows(self._recipe, tokenizer, self._agents)
        if self._attached.live_key is not None:
            self._live = LiveServer(
                self._recipe,
                tokenizer,
                self._pool,
                workflows,
                self._attached.live_key,
                start_recording=lambda: controller.start_one(),
            )
            await self._live.prepare()
        stages = make_stages(
            self._recipe,
            rl_checkpoint(self._checkpoint),
            source=source if self._live is None else LivePrompts(source),
            workflow=workflows.training() if self._live is None else self._live.traffic,
            evaluation_workflow=workflows.evaluation(),
            generator=self._pool,
            grader=self._grader,
            trainer=trainer,
        )
        evals = past_evals(self._run.path) if self._life.version else []
        kept = self._make_kept(source, evals)
        balance = make_balance(self._recipe, self._pool, self._life.emit)

        def emit(event: AnyEvent) -> None:
            kept(event)
            self._life.emit(event)
            balance(event)
            if isinstance(event, WeightsLoaded):
                self._serve_from_now()

        controller = Controller(
            self._recipe,
            stages,
            emit=emit,
            save_checkpoint=self._make_saver(trainer, kept),
            lost_workers=wait_for_losses(trainer, self._pool, self._grader, self._agents),
            version=self._life.version,
            seconds=self._life.seconds,
            evals=evals,
        )
        await self._run_controller(controller, kept)

    def _make_kept(self, source: PromptStream, evals: Sequence[EvalRow]) -> KeptVersions:
        keeps_best = self._recipe.checkpoint.keep_best
        return KeptVersions(
            self._recipe.eval,
            self._run.checkpoints,
            evals=evals,
            version=self._life.version,
            is_on=keeps_best and bool(source.held_out(self._recipe.eval.num_prompts)),
        )

    async def _run_controller(self, controller: Controller, kept: KeptVersions) -> None:
        """Train to the end; then remove old checkpoints and, if live, keep serving clients."""
        self._life.act("controller", Doing("running"))
        self._life.on_stop(controller.request_stop)
        with long_lived_objects():
            await controller.run()
        self._life.why_early = controller.why_early
        kept.end()
        self._life.flush()  # the evaluations that decide which checkpoints are removed
        remove_old(self._run.checkpoints, keep=self._recipe.checkpoint.keep, protected=kept.protected())
        if self._live is not None and not self._life.is_stopping:
            await self._serve_on()

    def _serve_from_now(self) -> None:
        """Start serving clients: the engines now have weights."""
        if self._live is not None and not self._live.url:
            self._note(f"live traffic is served at {self._live.open()}")

    async def _serve_on(self) -> None:
        """After the last step, serve clients until a stop is requested."""
        assert self._pool is not None
        stopped, background = asyncio.Event(), Supervisor()
        self._life.on_stop(stopped.set)
        self._note(f"all steps are trained; version {self._life.version} is served until Ctrl-C")
        try:
            background.start(self._pool.wait_for_loss())
            await background.watch(stopped.wait())
        finally:
            await background.close()
        self._life.is_stopping = False  # the run was over: only serving was stopped

    async def _watch_processes(self, launcher: Launcher) -> None:
        def grader_reports(seconds: float) -> Sequence[GraderReport]:
            return self._grader.reports(seconds) if self._grader is not None else ()

        pids = {"controller": os.getpid()}
        watch = ProcessWatch(self._life, pids=lambda: pids | dict(launcher.pids()), graders=grader_reports)
        await watch.run()

    def _note(self, text: str) -> None:
        self._life.emit(Notice(seconds=self._life.seconds, text=text))

    # ---- what happens ---------------------------------------------------------------------------

    def _on_engine_report(self, worker: str, stats: EngineStats) -> None:
        self._life.emit(EngineReport(seconds=self._life.seconds, worker=worker, stats=stats))
        for pool in (self._grader, self._agents):
            for name, doing in pool.activities().items() if pool else ():
                self._life.act(name, doing)

    def _on_engine_loaded(self, worker: str, loaded: Loaded) -> None:
        self._life.emit(
            EngineLoaded(
                seconds=self._life.seconds,
                worker=worker,
                version=loaded.published.version,
                load_seconds=loaded.load_seconds,
                num_interrupts=loaded.num_interrupts,
                drain_seconds=loaded.drain_seconds,
            )
        )

    def _on_rollout_busy(self, worker: str, is_busy: bool) -> None:
        if self._lending is not None:
            self._lending.note(worker, is_busy=is_busy)

    def _on_trainer_cores(self, cores: tuple[int, ...]) -> None:
        assert self._lending is not None  # only lending offers cores
        num_borrowed = len(cores) - len(self._lending.trainer_cores)
        self._life.emit(CoresMoved(seconds=self._life.seconds, cores=cores, num_borrowed=num_borrowed))

    def _on_worker_death(self, worker: str, reason: str, is_restarted: bool) -> None:
        self._life.emit(
            WorkerDied(seconds=self._life.seconds, worker=worker, reason=reason, is_restarted=is_restarted)
        )
