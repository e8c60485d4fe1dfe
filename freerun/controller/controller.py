"""The controller: two loops that meet only at the gate and the buffer.

    rollouts:  gate admits ─► workflow (generate, grade) ─► buffer          never waits for training
    training:  buffer ─► trainer step ─► version + 1 ─► publish ─► load ─► gate advances

Everything else (publishing, loading, checkpoints, evaluation) runs beside them. The controller decides
nothing about staleness itself: the gate says how many rollouts may start, the buffer which may be trained
on. It uses only the event loop's clock and knows its workers by their protocols, so that simulated ones
under virtual time can stand in for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from freerun.config.recipe import Recipe
from freerun.controller.checkpointing import Checkpointing, SaveCheckpoint
from freerun.controller.rollout_loop import RolloutLoop
from freerun.controller.stages import RunContext, Stages
from freerun.controller.training_loop import TrainingLoop
from freerun.errors import FreerunError
from freerun.evaluation.held_out import HeldOut
from freerun.events.events import Listener


class Controller:
    """Runs the two loops from `version` to `train.num_steps`, or until it is asked to stop."""

    def __init__(
        self,
        recipe: Recipe,
        stages: Stages,
        *,
        emit: Listener,
        save_checkpoint: SaveCheckpoint,
        lost_workers: Sequence[Coroutine[Any, Any, None]],
        version: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self._run = run = RunContext(recipe, stages, emit=emit, seconds=seconds)
        self._lost_workers = lost_workers
        """Each raises when a worker is lost that cannot be replaced."""
        self._held_out = HeldOut(
            stages.source.held_out(recipe.eval.num_prompts),
            stages.evaluation_workflow,
            stages.generator,
            stages.grader,
            num_samples=recipe.eval.num_samples,
            emit=emit,
            clock=lambda: run.seconds,
        )
        self._checkpointing = Checkpointing(run, save_checkpoint, version=version)
        self._training = TrainingLoop(run, self._checkpointing, self._held_out, version=version)
        self._rollouts = RolloutLoop(run, on_admission=self._training.say_what_is_missing)

    @property
    def version(self) -> int:
        """The trainer's."""
        return self._training.version

    def request_stop(self) -> None:
        """Finish the step under way, save, and return from `run`."""
        self._training.request_stop()

    async def run(self) -> None:
        """Train to the end, or until a stop is requested; leaves a checkpoint of the last version."""
        run, training = self._run, self._training
        for lost_worker in self._lost_workers:
            run.background.start(lost_worker)
        try:
            await run.background.watch(training.load(run.stages.trainer.publish()))
            if self.version == 0 and run.recipe.warm_start.num_steps:
                self._checkpointing.save(0)  # so that the warm start is never done twice
            rollouts = run.background.start(self._rollouts.run())
            await training.run()
            await self._rollouts.stop(rollouts)
            await run.background.watch(self._finish())
        except FreerunError:
            await self._save_what_is_left()
            raise
        finally:
            await run.background.cancel()

    async def _finish(self) -> None:
        """Save first, evaluate the last version while the files are written."""
        await self._checkpointing.save_last(self.version)
        await self._training.finish_loading()
        evaluation = self._run.background.start(self._held_out.evaluate_last(self.version))
        stop = self._run.background.start(_wait(self._training.stop_requested))
        await asyncio.wait({evaluation, stop}, return_when=asyncio.FIRST_COMPLETED)
        evaluation.cancel()
        await self._checkpointing.finish()

    async def _save_what_is_left(self) -> None:
        """When rollouts fail for good the trainer is still whole: keep the steps since the last checkpoint."""
        try:
            await self._checkpointing.save_last(self.version)
            await self._checkpointing.finish()
        except FreerunError:
            pass  # it is the trainer that is gone; the newest checkpoint stands


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
