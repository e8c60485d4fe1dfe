"""The training loop: trains whenever a batch is ready, and publishes its weights while the next step runs.

buffer ─► trainer step ─► version + 1 ─► publish ─► load ─► gate advances
"""

import asyncio
from collections.abc import Awaitable, Sequence

from freerun.controller.checkpointing import Checkpointing
from freerun.controller.stages import RunContext
from freerun.controller.stall import wait_while_moving
from freerun.errors import WorkerError
from freerun.evaluation.held_out import HeldOut
from freerun.events.events import Activity, GroupFinished, StepFinished, WeightsLoaded
from freerun.types import Doing, Group, GroupOutcome, Publication

REPLACE_SECONDS = 10.0
"""Time beyond `stall_seconds` in which the pool may replace a stuck engine before the run gives up."""


class TrainingLoop:
    """Runs from `version` to `train.num_steps`, or until asked to stop."""

    def __init__(self, run: RunContext, checkpointing: Checkpointing, held_out: HeldOut, *, version: int) -> None:
        self.version = version
        self.stop_requested = asyncio.Event()
        self._run = run
        self._checkpointing = checkpointing
        self._held_out = held_out
        self._loop = asyncio.get_running_loop()
        self._loading: asyncio.Task[None] | None = None
        self._waiting_for = ""
        """What the trainer waits for, as last reported; empty while it does not wait."""

    async def run(self) -> None:
        run = self._run
        while self.version < run.recipe.train.num_steps:
            began = self._loop.time()
            groups = await self._next_batch()
            if groups is None:
                return
            waited = self._loop.time() - began
            self._act(Doing("training"))
            # Not watched: a step always completes, so trainer and buffer keep the same version.
            result = await run.stages.trainer.step(groups)
            self.version = result.version
            run.emit(
                StepFinished(
                    seconds=run.seconds,
                    result=result,
                    groups=tuple(groups),
                    step_seconds=self._loop.time() - began - waited,
                    wait_seconds=waited,
                )
            )
            # Publishing overwrites the weights of the version before last: all engines must have left it.
            if self._loading is not None:
                await run.background.watch(self._loading)
            self._loading = run.background.start(self.load(run.stages.trainer.publish()))
            self._checkpointing.save_if_due(self.version)

    def request_stop(self) -> None:
        """Finish the current step, then return from `run`."""
        self.stop_requested.set()
        self._run.training_wake.set()

    async def finish_loading(self) -> None:
        """Wait until the engines have the newest version."""
        if self._loading is not None:
            await self._loading

    def say_what_is_missing(self) -> None:
        """Report again if the trainer waits and the reason has changed."""
        if self._waiting_for:
            self._act_waiting()

    async def load(self, publishing: Awaitable[Publication]) -> None:
        """Load the trainer's version into every engine; the gate opens when all have confirmed it."""
        run, published = self._run, await publishing
        await run.stages.generator.load(published)
        run.emit(WeightsLoaded(seconds=run.seconds, version=published.version, checksum=published.checksum))
        is_last = published.version == run.recipe.train.num_steps
        if published.version % run.recipe.eval.every_steps == 0 and not is_last:
            evaluation = self._held_out.begin(published.version)
            if run.recipe.buffer.max_staleness == 0:  # a synchronous run does one thing at a time
                await evaluation
            else:
                run.background.start(evaluation)
        run.stages.gate.advance(published.version)
        run.rollouts_wake.set()

    async def _next_batch(self) -> Sequence[Group] | None:
        """The next batch, oldest first; None when a stop was requested."""
        run, buffer = self._run, self._run.stages.buffer
        while not self.stop_requested.is_set():
            run.training_wake.clear()
            if (batch := buffer.take(self.version)) is not None:
                run.stages.gate.give_back(len(batch.discarded) * run.recipe.sampling.group_size)
                for ordinal in batch.discarded:
                    outcome: GroupOutcome = "requeued" if ordinal in buffer.to_restart else "dropped"
                    run.emit(GroupFinished(seconds=run.seconds, ordinal=ordinal, outcome=outcome))
                run.rollouts_wake.set()
                return batch.groups
            self._act_waiting()
            await run.background.watch(self._wait_for_rollouts())
            self._waiting_for = ""
        return None

    async def _wait_for_rollouts(self) -> None:
        """Wait for a group to finish; raise if no token and no grade arrives for `stall_seconds`."""
        seconds, stages = self._run.recipe.runtime.stall_seconds, self._run.stages
        wake, patience = self._run.training_wake, seconds + REPLACE_SECONDS
        if not await wait_while_moving(wake, self._progress, stall_seconds=patience):
            missing = stages.generator.missing()
            raise WorkerError(
                f"nothing was generated or graded for {seconds:.0f} s; waiting for "
                f"{stages.buffer.waiting_for()}{f'; {missing}' if missing else ''}"
            )

    def _progress(self) -> tuple[int, int, int]:
        """Changes whenever something is generated or graded, or an engine is replaced."""
        generator = self._run.stages.generator
        num_tokens = sum(stats.num_tokens for stats in generator.stats())
        return self._run.stages.grader.num_graded, num_tokens, generator.num_ready

    def _act(self, doing: Doing) -> None:
        self._run.emit(Activity(seconds=self._run.seconds, worker="trainer", doing=doing))

    def _act_waiting(self) -> None:
        before, self._waiting_for = self._waiting_for, self._run.stages.buffer.waiting_for()
        if self._waiting_for != before:
            self._act(Doing("waiting", self._waiting_for))
