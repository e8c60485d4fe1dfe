"""Puts a run together: the only place that chooses classes, starts processes and ends them.

    run_training ─► run directory ─► store and view ─► workers ─► controller ─► summary

Whatever happens, no process is left: workers are killed on the way out, and die with this process if it
is killed itself.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any

from rich.console import Console

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import Recipe
from freerun.data.source import PromptSource
from freerun.data.tasks import load_problems
from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError
from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    EngineReport,
    RunFinished,
    RunStarted,
    WarmStartProgress,
    WorkerDied,
)
from freerun.events.store import Store
from freerun.processes.child import Child
from freerun.reward.pool import GraderPool
from freerun.rollout.single_turn import SingleTurn
from freerun.runtime.checkpoint import Checkpoint, CheckpointWriter, ControllerState
from freerun.runtime.controller import Controller, Stages
from freerun.runtime.messages import FromRollout, FromTrainer, StartEngine, StartTrainer
from freerun.runtime.placement import place
from freerun.runtime.rollouts import RolloutPool
from freerun.runtime.run_directory import RunDirectory, open_run
from freerun.runtime.summary import describe
from freerun.runtime.trainer_client import TrainerClient
from freerun.runtime.view import View, make_view
from freerun.runtime.warm_start import warm_start
from freerun.types import EngineStats
from freerun.weights.buffers import close_buffers, create_buffers

EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}


def run_training(recipe: Recipe, *, resume: bool, recipe_name: str) -> int:
    """Train by the recipe and return the exit code; the summary says where the model is."""
    run, checkpoint = open_run(recipe, resume=resume)
    console = Console()
    view = make_view(console)
    with Store(run.path) as store:
        if resume:
            store.rewind(checkpoint.state.version if checkpoint else -1)
        with view:
            outcome = asyncio.run(_Session(recipe, run, checkpoint, store, view).run())
    console.print(describe(view.state, recipe=recipe_name), markup=False, highlight=False, soft_wrap=True)
    return EXIT_CODES[outcome]


class _Session:
    """One start of a run: everything between its first process and its last."""

    def __init__(
        self, recipe: Recipe, run: RunDirectory, checkpoint: Checkpoint | None, store: Store, view: View
    ) -> None:
        self._recipe = recipe
        self._run = run
        self._checkpoint = checkpoint
        self._store = store
        self._view = view
        self._version = checkpoint.state.version if checkpoint else 0
        self._model_directory = checkpoint.model_directory if checkpoint else Path(recipe.model.path)
        self._saved_model = str(checkpoint.model_directory) if checkpoint else ""
        self._controller: Controller | None = None
        self._is_stopping = False
        self._doing: dict[str, str] = {}

    async def run(self) -> str:
        """Run to the end and return the outcome; failures are reported, not raised, unless they are ours."""
        self._loop = asyncio.get_running_loop()
        self._start_time = self._loop.time() - (self._checkpoint.state.seconds if self._checkpoint else 0.0)
        self._main = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal)
        outcome, reason = "failed", "an internal error; the traceback follows"
        try:
            self._emit_start()
            await self._run_stages()
            outcome, reason = ("interrupted", "") if self._is_stopping else ("finished", "")
        except asyncio.CancelledError:
            outcome, reason = "interrupted", "stopped at once, without a checkpoint of the last steps"
        except FreerunError as error:
            reason = str(error)
        finally:
            self._emit(
                RunFinished(
                    seconds=self._seconds(),
                    outcome=outcome,  # type: ignore[arg-type]
                    reason=reason,
                    version=self._controller.version if self._controller else self._version,
                    model_directory=self._saved_model,
                )
            )
        return outcome

    async def _run_stages(self) -> None:
        recipe = self._recipe
        tokenizer = Tokenizer.load(self._run.model)
        source = PromptSource(load_problems(recipe.data), tokenizer, config=recipe.data, seed=recipe.run.seed)
        if source.num_too_long:
            self._act("controller", f"left out {source.num_too_long} prompts over data.max_prompt_tokens")
        gate, buffer = self._restored(source)
        placement = place(recipe)
        buffers = create_buffers(f"freerun-{recipe.run.name}")
        grader = GraderPool(recipe.reward, log_directory=self._run.logs)
        pool = self._make_pool(buffers, placement.rollout_cores)
        child: Child[FromTrainer] = await Child.start(
            "trainer",
            "freerun.runtime.train_worker",
            receives=FromTrainer,
            log_path=self._run.logs / "trainer.log",
            num_threads=recipe.train.num_threads,
            cores=placement.trainer_cores,
            inherited_fds=buffers,
        )
        trainer = TrainerClient(
            child,
            config=recipe.runtime,
            on_progress=lambda doing: self._act("trainer", doing),
        )
        try:
            self._act("controller", "starting the workers")
            await self._start(trainer, pool, grader, buffers)
            if recipe.warm_start.num_steps and self._checkpoint is None:
                await self._warm_start(trainer, tokenizer)
            request_ids = itertools.count()
            workflows = [
                SingleTurn(
                    recipe.sampling,
                    num_samples=num_samples,
                    stop_token_ids=tokenizer.stop_token_ids,
                    request_ids=request_ids,
                )
                for num_samples in (recipe.sampling.group_size, recipe.eval.num_samples)
            ]
            stages = Stages(
                source=source,
                workflow=workflows[0],
                evaluation_workflow=workflows[1],
                generator=pool,
                grader=grader,
                gate=gate,
                buffer=buffer,
                trainer=trainer,
            )
            self._controller = Controller(
                recipe,
                stages,
                emit=self._emit,
                save_checkpoint=lambda state: self._save(trainer, state),
                lost_worker=pool.wait_for_loss(),
                version=self._version,
                seconds=self._seconds(),
            )
            self._act("controller", "running")
            if self._is_stopping:
                self._controller.request_stop()
            await self._controller.run()
        finally:
            await asyncio.gather(trainer.close(), pool.close(), grader.close())
            close_buffers(buffers)

    def _restored(self, source: PromptSource) -> tuple[StalenessGate, TrajectoryBuffer]:
        """Gate and buffer as they were at the checkpoint, or new ones."""
        recipe = self._recipe
        buffer = TrajectoryBuffer(
            groups_per_batch=recipe.train.prompts_per_step,
            max_staleness=recipe.buffer.max_staleness,
            policy=recipe.buffer.policy,
            filter_zero_variance=recipe.buffer.filter_zero_variance,
        )
        if self._checkpoint is not None:
            buffer.restore(self._checkpoint.state.buffer)
            source.cursor = self._checkpoint.state.cursor
        gate = StalenessGate(
            batch_size=recipe.batch_size,
            max_staleness=recipe.buffer.max_staleness,
            version=self._version,
            num_buffered=buffer.counts.ready * recipe.sampling.group_size,
        )
        return gate, buffer

    def _make_pool(self, buffers: list[int], cores: tuple[tuple[int, ...], ...]) -> RolloutPool:
        recipe = self._recipe

        async def spawn(index: int) -> Child[FromRollout]:
            name = f"rollout-{index}"
            self._act(name, "starting")
            return await Child.start(
                name,
                "freerun.runtime.rollout_worker",
                receives=FromRollout,
                log_path=self._run.logs / f"{name}.log",
                num_threads=recipe.engine.num_threads,
                cores=cores[index],
                inherited_fds=buffers,
            )

        return RolloutPool(
            spawn=spawn,
            start_message=StartEngine(
                model_directory=str(self._run.model),
                engine=recipe.engine,
                max_sequence_tokens=recipe.max_sequence_tokens,
                seed=recipe.run.seed,
                weight_buffers=tuple(buffers),
            ),
            num_workers=recipe.engine.num_workers,
            config=recipe.runtime,
            on_report=self._on_engine_report,
            on_death=self._on_worker_death,
        )

    async def _start(
        self, trainer: TrainerClient, pool: RolloutPool, grader: GraderPool, buffers: list[int]
    ) -> None:
        start = StartTrainer(
            model_directory=str(self._model_directory),
            companions_directory=str(self._run.model),
            train=self._recipe.train,
            temperature=self._recipe.sampling.temperature,
            version=self._version,
            optimizer_file=str(self._checkpoint.optimizer_file) if self._checkpoint else "",
            weight_buffers=tuple(buffers),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trainer.start(start))
            tasks.create_task(pool.start())
            tasks.create_task(grader.start())

    async def _warm_start(self, trainer: TrainerClient, tokenizer: Tokenizer) -> None:
        num_steps = self._recipe.warm_start.num_steps

        def on_step(step: int, loss: float) -> None:
            self._emit(WarmStartProgress(seconds=self._seconds(), step=step, num_steps=num_steps, loss=loss))

        await warm_start(trainer, self._recipe, tokenizer, on_step=on_step)

    def _save(self, trainer: TrainerClient, state: ControllerState) -> Coroutine[Any, Any, None]:
        """Ask the trainer for its files at once; the rest is the coroutine's."""
        writer = CheckpointWriter(self._run.checkpoints, state)
        return self._finish_save(writer, trainer.save(str(writer.directory), version=state.version), state.version)

    async def _finish_save(self, writer: CheckpointWriter, saved: Awaitable[None], version: int) -> None:
        await saved
        # The store first, so that it never lacks what the checkpoint has seen.
        await asyncio.to_thread(self._store.flush)
        directory = await writer.seal(keep=self._recipe.checkpoint.keep)
        self._saved_model = str(directory / "model")
        self._emit(CheckpointSaved(seconds=self._seconds(), version=version, directory=str(directory)))

    # ---- what happens ---------------------------------------------------------------------------

    def _seconds(self) -> float:
        return self._loop.time() - self._start_time

    def _emit(self, event: AnyEvent) -> None:
        self._store(event)
        self._view(event)

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

    def _act(self, worker: str, doing: str) -> None:
        if self._doing.get(worker) != doing:
            self._doing[worker] = doing
            self._emit(Activity(seconds=self._seconds(), worker=worker, doing=doing))

    def _on_engine_report(self, worker: str, stats: EngineStats) -> None:
        self._emit(EngineReport(seconds=self._seconds(), worker=worker, stats=stats))
        if stats.num_running:
            queued = f", {stats.num_waiting} waiting" if stats.num_waiting else ""
            self._act(worker, f"generating {stats.num_running} sequences{queued}")
        else:
            self._act(worker, "waiting for the gate to admit a rollout")

    def _on_worker_death(self, worker: str, reason: str, is_restarted: bool) -> None:
        self._emit(WorkerDied(seconds=self._seconds(), worker=worker, reason=reason, is_restarted=is_restarted))

    def _on_signal(self) -> None:
        """The first Ctrl-C or SIGTERM finishes the step and saves; the second stops at once."""
        if self._is_stopping or self._controller is None:
            if self._main is not None:
                self._main.cancel()
            return
        self._is_stopping = True
        self._act("controller", "stopping: finishing the step, then saving (Ctrl-C again stops at once)")
        self._controller.request_stop()
