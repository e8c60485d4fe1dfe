"""One start of a run: everything between its first process and its last.

    run directory ─► store and view ─► workers ─► warm start ─► controller ─► summary

Whatever happens, no process is left: workers are killed on the way out, and die with this process if it
is killed itself. The first Ctrl-C, SIGTERM or SIGHUP (the terminal was closed) finishes the step and saves; the
second stops at once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Coroutine
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint, CheckpointWriter, ControllerState, drop_optimizers
from freerun.controller.controller import Controller
from freerun.controller.stages import Stages
from freerun.data.tokenizer import Tokenizer
from freerun.errors import CheckpointError, ConfigError, FreerunError, WorkerError
from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineReport,
    RunFinished,
    RunStarted,
    StepFinished,
    WarmStartProgress,
    WorkerDied,
)
from freerun.events.store import Store
from freerun.model.adapter_directory import model_config
from freerun.model.directory_check import check_directory
from freerun.model.projections import check_rank
from freerun.processes.log_file import open_log
from freerun.session.attachments import Attachments, Listeners
from freerun.session.build import (
    RunGrader,
    check_backends,
    check_model,
    check_prompts,
    make_core_lending,
    make_curriculum,
    make_gate_and_buffer,
    make_grader,
    make_launcher,
    make_rollout_pool,
    make_source,
    make_trainer,
    make_workflows,
)
from freerun.session.core_lending import CoreLending
from freerun.session.run_directory import RunDirectory, keep_rows, open_run, write_config
from freerun.session.warm_start import warm_start
from freerun.terminal.summary import describe
from freerun.terminal.view import LoggedView, View, make_view
from freerun.types import EngineStats
from freerun.workers.messages import DIVERGED, StartTrainer
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

Outcome = Literal["finished", "interrupted", "failed"]
EXIT_CODES: dict[Outcome, int] = {"finished": 0, "interrupted": 130, "failed": 1}

LOG_FILE = "log.txt"
"""In the run directory: everything that is printed, of all sessions."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_training(recipe: Recipe, *, resume: bool) -> int:
    """Train by the recipe and return the exit code; the summary says where the model is."""
    return EXIT_CODES[train_to_end(recipe, resume=resume).outcome]


def train_to_end(recipe: Recipe, *, resume: bool, attached: Attachments | None = None) -> RunFinished:
    """Train by the recipe, with what the caller attaches, and return how it ended."""
    attached = attached or Attachments()
    check_backends(recipe)
    base = Path(recipe.model.path)
    if not resume:  # before there is a run
        check_directory(base)
    console = Console()
    with (
        open_run(recipe, resume=resume) as (run, checkpoint),
        Store(run.path) as store,
        _open_log(run.path / LOG_FILE) as log,
    ):
        if resume and (checkpoint is None or recipe.lora.is_on):  # else the checkpoint holds all weights
            check_directory(base)
        if attached.rows is not None:
            keep_rows(run, attached.rows, resume=resume)
        view = LoggedView(make_view(console), log)
        if resume:
            if checkpoint is not None:
                store.rewind(checkpoint.state.version, seconds=checkpoint.state.seconds)
            else:
                store.rewind(0)

        async def run_session() -> RunFinished:
            return await Session(recipe, run, checkpoint, store, view, attached).run()

        with view:
            finished = asyncio.run(run_session())
        view.say(describe(view.state, num_bytes=run.num_bytes(), shows_failures=view.shows_failures))
    return finished


def _open_log(path: Path) -> FileIO:
    try:
        return open_log(path)
    except OSError as error:
        raise ConfigError(f"{path}: the log cannot be opened ({error.strerror or error}); move it away") from error


class Session:
    """The lifetime of a run's processes, and everything that happens to it as events."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunDirectory,
        checkpoint: Checkpoint | None,
        store: Store,
        view: View,
        attached: Attachments | None = None,
    ) -> None:
        self._recipe = recipe
        self._run = run
        self._checkpoint = checkpoint
        self._store = store
        self._view = view
        self._attached = attached or Attachments()
        self._listeners = Listeners(self._attached.listeners, report=view.say)
        self._version = checkpoint.state.version if checkpoint else 0
        self._saved_model = str(checkpoint.model_directory) if checkpoint else ""
        self._unsaved = ""
        """Why a checkpoint could not be written, if one could not."""
        self._controller: Controller | None = None
        self._grader: RunGrader | None = None
        self._lending: CoreLending | None = None
        self._is_stopping = False
        self._doing: dict[str, str] = {}
        self._main = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._start_time = self._loop.time() - (checkpoint.state.seconds if checkpoint else 0.0)

    async def run(self) -> RunFinished:
        """Run to the end; failures a user can act on are reported as the outcome, ours are raised."""
        self._listen_for_stops()
        outcome: Outcome = "failed"
        reason = "an internal error; the traceback follows"
        self._emit_start()
        try:
            await self._run_stages()
            if not self._is_stopping and not self._recipe.checkpoint.keep_optimizer:
                drop_optimizers(self._run.checkpoints)
            outcome, reason = "interrupted" if self._is_stopping else "finished", ""
        except asyncio.CancelledError:
            outcome, reason = "interrupted", "stopped at once, without a checkpoint of the last steps"
        except FreerunError as error:
            reason = self._explain(error)
        finally:
            finished = self._emit_end(outcome, reason)
        return finished

    def _listen_for_stops(self) -> None:
        self._attached.stop.connect(lambda: self._loop.call_soon_threadsafe(self._on_signal))
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to the main thread
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and means it
                self._loop.add_signal_handler(number, self._on_signal)

    async def _run_stages(self) -> None:
        recipe, logs = self._recipe, self._run.logs
        tokenizer = Tokenizer.load(self._run.model)
        check_model(recipe, tokenizer, self._run.model)
        check_rank(recipe.lora, model_config(self._run.model), self._run.model)
        source = make_source(recipe, tokenizer, self._checkpoint)
        check_prompts(recipe, source)
        write_config(self._run, recipe)
        if source.num_too_long:
            self._act("controller", f"left out {source.num_too_long} prompts over data.max_prompt_tokens")
        gate, buffer = make_gate_and_buffer(recipe, self._checkpoint)
        workflow, evaluation_workflow = make_workflows(recipe, tokenizer)
        launcher = make_launcher(recipe, logs, has_weights=True)
        grader = self._grader = make_grader(
            recipe, launcher, self._on_worker_death, function=self._attached.reward
        )
        pool = make_rollout_pool(
            recipe,
            launcher,
            model_directory=self._run.model,
            has_weights=True,
            on_report=self._on_engine_report,
            on_death=self._on_worker_death,
            on_busy=self._on_rollout_busy,
        )
        trainer = await make_trainer(
            recipe,
            launcher,
            on_progress=lambda doing: self._act("trainer", doing),
            on_cores=self._on_trainer_cores,
        )
        try:
            self._lending = make_core_lending(recipe, trainer.use_cores)
            await self._start_workers(trainer, pool, grader)
            if recipe.warm_start.num_steps and self._checkpoint is None:
                await self._warm_start(trainer, tokenizer)
            stages = Stages(
                source=source,
                workflow=workflow,
                evaluation_workflow=evaluation_workflow,
                generator=pool,
                grader=grader,
                gate=gate,
                buffer=buffer,
                trainer=trainer,
                curriculum=make_curriculum(recipe, self._checkpoint),
            )
            await self._control(stages, trainer, pool)
        finally:
            await asyncio.gather(trainer.close(), pool.close(), grader.close())
            await launcher.close()

    async def _start_workers(self, trainer: TrainerClient, pool: RolloutPool, grader: RunGrader) -> None:
        self._act("controller", "starting the workers")
        base, saved = Path(self._recipe.model.path), self._checkpoint.model_directory if self._checkpoint else None
        has_adapter = self._recipe.lora.is_on
        start = StartTrainer(
            model_directory=str(base if has_adapter or saved is None else saved),
            adapter_directory=str(saved) if has_adapter and saved else "",
            lora=self._recipe.lora,
            seed=self._recipe.run.seed,
            companions_directory=str(self._run.model),
            train=self._recipe.train,
            objective=self._recipe.objective,
            temperature=self._recipe.sampling.temperature,
            max_completion_tokens=self._recipe.sampling.max_completion_tokens,
            is_truncated=self._recipe.sampling.top_k > 0 or self._recipe.sampling.top_p < 1,
            version=self._version,
            optimizer_file=str(self._checkpoint.optimizer_file) if self._checkpoint else "",
            reference_directory=str(self._run.reference) if self._recipe.objective.kl_coefficient > 0 else "",
            num_engine_gpus=self._recipe.engine.num_workers * self._recipe.engine.num_gpus,
            borrows_cores=self._lending is not None,
        )
        ready, *_ = await asyncio.gather(trainer.start(start), pool.start(), grader.start())
        self._act("trainer", f"ready: trains {ready.num_trained:,} of {ready.num_parameters:,} parameters")

    async def _warm_start(self, trainer: TrainerClient, tokenizer: Tokenizer) -> None:
        num_steps = self._recipe.warm_start.num_steps

        def on_step(step: int, loss: float) -> None:
            self._emit(WarmStartProgress(seconds=self._seconds(), step=step, num_steps=num_steps, loss=loss))

        self._act("controller", "warming up the model")
        await warm_start(trainer, self._recipe, tokenizer, on_step=on_step)

    async def _control(self, stages: Stages, trainer: TrainerClient, pool: RolloutPool) -> None:
        self._controller = Controller(
            self._recipe,
            stages,
            emit=self._emit,
            save_checkpoint=lambda state: self._save(trainer, state),
            lost_workers=(pool.wait_for_loss(), trainer.wait_for_loss()),
            version=self._version,
            seconds=self._seconds(),
        )
        self._act("controller", "running")
        await self._controller.run()

    def _save(self, trainer: TrainerClient, state: ControllerState) -> Coroutine[Any, Any, None]:
        """Ask the trainer for its files at once; the rest, failures included, is the coroutine's."""
        try:
            writer = CheckpointWriter(self._run.checkpoints, state)
        except CheckpointError as error:
            return self._fail_save(error, state.version)
        saved = trainer.save(str(writer.directory), version=state.version)
        return self._finish_save(writer, saved, state.version)

    async def _fail_save(self, error: CheckpointError, version: int) -> None:
        self._unsaved = f"version {version} was not saved: {error}; {self._describe_newest()}"
        raise CheckpointError(self._unsaved) from error

    async def _finish_save(self, writer: CheckpointWriter, saved: Awaitable[None], version: int) -> None:
        try:
            await saved
            # The store first, so that it never lacks what the checkpoint has seen.
            await asyncio.to_thread(self._store.flush)
            directory = await writer.seal(keep=self._recipe.checkpoint.keep)
        except FreerunError as error:
            await asyncio.to_thread(writer.discard)
            if not isinstance(error, CheckpointError):
                raise  # the store or the trainer is at fault, and says so
            await self._fail_save(error, version)
        self._saved_model = str(directory / "model")
        self._emit(CheckpointSaved(seconds=self._seconds(), version=version, directory=str(directory)))

    def _describe_newest(self) -> str:
        if not self._saved_model:
            return "there is no checkpoint before it"
        return f"the newest checkpoint is {Path(self._saved_model).parent}, which --resume continues from"

    def _explain(self, error: FreerunError) -> str:
        """Why the run ended, and why its last steps were not saved if that was tried in vain."""
        reason = str(error)
        return f"{reason}; {self._unsaved}" if self._unsaved and self._unsaved not in reason else reason

    # ---- what happens ---------------------------------------------------------------------------

    def _seconds(self) -> float:
        return self._loop.time() - self._start_time

    def _emit(self, event: AnyEvent) -> None:
        if isinstance(event, StepFinished):
            self._store.check()  # a store that cannot write must not go unnoticed for more than a step
            if event.result.metrics.get(DIVERGED):
                raise WorkerError(
                    f"training diverged: after step {event.result.version} the weights or the logits are not "
                    "finite; resume with a lower train.lr"
                )
        self._store(event)
        self._view(event)
        self._listeners(event)

    def _emit_start(self) -> None:
        self._emit(
            RunStarted(
                seconds=self._seconds(),
                name=self._recipe.run.name,
                directory=str(self._run.path),
                num_steps=self._recipe.train.num_steps,
                version=self._version,
                max_staleness=self._recipe.buffer.max_staleness,
            )
        )

    def _emit_end(self, outcome: Outcome, reason: str) -> RunFinished:
        finished = RunFinished(
            seconds=self._seconds(),
            outcome=outcome,
            reason=reason,
            version=self._controller.version if self._controller else self._version,
            model_directory=self._saved_model,
        )
        self._emit(finished)
        return finished

    def _act(self, worker: str, doing: str) -> None:
        if self._doing.get(worker) != doing:
            self._doing[worker] = doing
            self._emit(Activity(seconds=self._seconds(), worker=worker, doing=doing))

    def _on_engine_report(self, worker: str, stats: EngineStats) -> None:
        self._emit(EngineReport(seconds=self._seconds(), worker=worker, stats=stats))
        queued = f", {stats.num_waiting} waiting" if stats.num_waiting else ""
        parts = [f"generating {stats.num_running} sequences{queued}"] if stats.num_running else []
        parts += [f"evaluating {stats.num_evaluating}"] if stats.num_evaluating else []
        self._act(worker, ", ".join(parts) or "waiting for the gate to admit a rollout")
        for name, doing in self._grader.activities().items() if self._grader else ():
            self._act(name, doing)

    def _on_rollout_busy(self, worker: str, is_busy: bool) -> None:
        if self._lending is not None:
            self._lending.note(worker, is_busy=is_busy)

    def _on_trainer_cores(self, cores: tuple[int, ...]) -> None:
        assert self._lending is not None  # nobody else offers cores
        num_borrowed = len(cores) - len(self._lending.trainer_cores)
        self._emit(CoresMoved(seconds=self._seconds(), cores=cores, num_borrowed=num_borrowed))

    def _on_worker_death(self, worker: str, reason: str, is_restarted: bool) -> None:
        self._emit(WorkerDied(seconds=self._seconds(), worker=worker, reason=reason, is_restarted=is_restarted))

    def _on_signal(self) -> None:
        if self._is_stopping or self._controller is None:
            if self._main is not None:
                self._main.cancel()
            return
        self._is_stopping = True
        self._act("controller", "stopping: finishing the step, then saving (Ctrl-C again stops at once)")
        self._controller.request_stop()
