"""The controller: two loops that meet only at the gate and the buffer.

    rollouts:  gate admits ─► workflow (generate, grade) ─► buffer          never waits for training
    training:  buffer ─► trainer step ─► version + 1 ─► publish ─► load ─► gate advances

Publishing, loading, checkpoints and evaluation run concurrently. Staleness is not decided here: the gate says how
many rollouts may start, the buffer which may be trained on. The controller uses only the event loop's clock and
knows workers only by their protocols, so tests can run it with simulated workers in virtual time.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from freerun.config.recipe import Recipe
from freerun.controller.checkpointing import Checkpointing, SaveCheckpoint
from freerun.controller.early_stop import EarlyStop
from freerun.controller.live_rollouts import LiveRollouts
from freerun.controller.rollout_loop import RolloutLoop
from freerun.controller.stages import RunContext, Stages
from freerun.controller.training_loop import TrainingLoop
from freerun.errors import FreerunError
from freerun.evaluation.held_out import HeldOut
from freerun.events.events import AnyEvent, EvalFinished, EvalRow, Listener
from freerun.types import Prompt


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
        evals: Sequence[EvalRow] = (),
    ) -> None:
        self._run = run = RunContext(recipe, stages, emit=emit, seconds=seconds)
        self._lost_workers = lost_workers
        """Each coroutine raises when a worker that cannot be replaced is lost."""
        self._held_out = HeldOut(
            stages.source.held_out(recipe.eval.num_prompts),
            stages.evaluation_workflow,
            stages.generator,
            stages.grader,
            num_samples=recipe.eval.num_samples,
            emit=self._on_evaluation,
            clock=lambda: run.seconds,
        )
        saves_evaluated = recipe.checkpoint.keep_best and self._held_out.is_on
        self._checkpointing = Checkpointing(run, save_checkpoint, version=version, saves_evaluated=saves_evaluated)
        self._early_stop = EarlyStop(recipe.eval, evals)
        self._training = TrainingLoop(run, self._checkpointing, self._held_out, version=version)
        loop = LiveRollouts if recipe.online.is_on else RolloutLoop
        self._rollouts: LiveRollouts | RolloutLoop = loop(run, on_admission=self._training.say_what_is_missing)

    @property
    def version(self) -> int:
        """The trainer's version."""
        return self._training.version

    @property
    def why_early(self) -> str:
        """The evaluation result that ended the run before `train.num_steps`; empty if there was none."""
        return self._training.why_early

    def start_one(self) -> Prompt | None:
        """On live traffic, start a group for a session that begins now; None if the session is not recorded."""
        return self._rollouts.start_one() if isinstance(self._rollouts, LiveRollouts) else None

    def request_stop(self) -> None:
        """Finish the current step, save, and return from `run`."""
        self._training.request_stop()

    async def run(self) -> None:
        """Train to the end, or until a stop is requested; a checkpoint of the last version is left."""
        run, training = self._run, self._training
        for lost_worker in self._lost_workers:
            run.background.start(lost_worker)
        try:
            published = run.stages.trainer.publish()
            if self.version == 0 and run.recipe.sft.is_on:
                self._checkpointing.save(0)  # SFT is done once, so save it before a load can fail
            await run.background.watch(training.load(published))
            rollouts = run.background.start(self._rollouts.run())
            training.end_early(self._early_stop.reason)  # an earlier session's evaluation may suffice
            await training.run()
            await self._rollouts.stop(rollouts)
            await run.background.watch(self._finish())
        except FreerunError:
            await self._save_what_is_left()
            raise
        finally:
            run.queues.close()
            await run.background.close()

    def _on_evaluation(self, event: AnyEvent) -> None:
        self._run.emit(event)
        if isinstance(event, EvalFinished):
            self._early_stop.note(event)
            self._training.end_early(self._early_stop.reason)

    async def _finish(self) -> None:
        """Start saving, then evaluate the last version while the files are written."""
        await self._checkpointing.save_last(self.version)
        await self._training.finish_loading()
        evaluation = self._run.background.start(self._held_out.evaluate_last(self.version))
        stop = self._run.background.start(_wait(self._training.stop_requested))
        await asyncio.wait({evaluation, stop}, return_when=asyncio.FIRST_COMPLETED)
        evaluation.cancel()
        await self._checkpointing.finish()

    async def _save_what_is_left(self) -> None:
        """Save the steps since the last checkpoint: the trainer may still be intact when rollouts fail."""
        try:
            await self._checkpointing.save_last(self.version)
            await self._checkpointing.finish()
        except FreerunError:
            pass  # the trainer is gone; the newest checkpoint remains


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
