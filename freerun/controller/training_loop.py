"""The training loop: trains whenever a batch is ready, and publishes its weights while the next step runs.

buffer ─► trainer step ─► version + 1 ─► publish ─► load ─► gate advances
"""

import asyncio
from collections.abc import Awaitable, Sequence

from freerun.controller.checkpointing import Checkpointing
from freerun.controller.stages import RunContext
from freerun.controller.stall import wait_for_rollouts
from freerun.controller.step_facts import StepFacts
from freerun.evaluation.held_out import HeldOut
from freerun.events.events import Activity, GroupFinished, StepFinished, WeightsLoaded
from freerun.types import Doing, Group, GroupOutcome, Publication


class TrainingLoop:
    """Runs from `version` to `train.num_steps`, or until asked to stop."""

    def __init__(self, run: RunContext, checkpointing: Checkpointing, held_out: HeldOut, *, version: int) -> None:
        self.version = version
        self.stop_requested = asyncio.Event()
        self.why_early = ""
        """Why the loop ends before `train.num_steps`; empty if it does not."""
        self._run = run
        self._checkpointing = checkpointing
        self._held_out = held_out
        self._facts = StepFacts(run)
        self._loop = asyncio.get_running_loop()
        self._loading: asyncio.Task[None] | None = None
        self._waiting_for = ""
        """What the trainer waits for, as last reported; empty while it does not wait."""
        self._loading_seconds = 0.0
        """How long, after the previous step, engines still read the weights that publishing would overwrite."""

    async def run(self) -> None:
        run = self._run
        while self.version < run.recipe.train.num_steps:
            began = self._loop.time()
            run.freshness.note_asked()
            groups = await self._next_batch()
            if groups is None:
                return
            waited = self._loop.time() - began
            run.freshness.note_taken()
            self._act(Doing("training"))
            # Not watched: a step always completes, so trainer and buffer keep the same version.
            result = await run.stages.trainer.step(groups)
            self.version = result.version
            queues = run.queues.counts()
            run.emit(
                StepFinished(
                    seconds=run.seconds,
                    result=self._facts.added_to(result, groups, queues, loading_seconds=self._loading_seconds),
                    groups=tuple(groups),
                    step_seconds=self._loop.time() - began - waited,
                    wait_seconds=waited,
                    queues=queues,
                )
            )
            await self._wait_for_engines()
            self._loading = run.background.start(self.load(run.stages.trainer.publish()))
            await self._checkpointing.save_if_due(self.version)

    async def _wait_for_engines(self) -> None:
        """Wait until all engines have left the version before last, whose weights publishing overwrites."""
        began = self._loop.time()
        if self._loading is not None:
            if not self._loading.done():
                self._act(Doing("loading", f"version {self.version - 1}"))
            await self._run.background.watch(self._loading)
        self._loading_seconds = self._loop.time() - began

    def request_stop(self) -> None:
        """Finish the current step, then return from `run`."""
        self.stop_requested.set()
        self._run.training_wake.set()

    def end_early(self, why: str) -> None:
        """As `request_stop`, but the run counts as finished because of `why`; does nothing if `why` is empty."""
        if why and not self.why_early and self.version < self._run.recipe.train.num_steps:
            self.why_early = why
            self._run.training_wake.set()

    async def finish_loading(self) -> None:
        """Wait until the engines have loaded the newest version."""
        if self._loading is not None:
            await self._loading

    def say_what_is_missing(self) -> None:
        """Report again what the trainer waits for, if it waits and the reason has changed."""
        if self._waiting_for:
            self._act_waiting()

    async def load(self, publishing: Awaitable[Publication]) -> None:
        """Load the trainer's version into every engine; the gate opens when all have confirmed it."""
        run, published = self._run, await publishing
        await run.stages.generator.load(published)
        run.emit(WeightsLoaded(seconds=run.seconds, version=published.version, checksum=published.checksum))
        is_last = published.version == run.recipe.train.num_steps
        if run.recipe.eval.is_due(published.version) and not is_last:
            evaluation = self._held_out.begin(published.version)
            if run.recipe.buffer.max_staleness == 0:  # a synchronous run does one thing at a time
                await evaluation
            else:
                run.background.start(evaluation)
        run.stages.gate.advance(published.version)
        run.rollouts_wake.set()

    async def _next_batch(self) -> Sequence[Group] | None:
        """The next batch, oldest first; None when the run must stop or end early."""
        run, buffer = self._run, self._run.stages.buffer
        while not self.stop_requested.is_set() and not self.why_early:
            run.training_wake.clear()
            if (batch := buffer.take(self.version)) is not None:
                run.stages.gate.give_back(len(batch.discarded) * run.recipe.sampling.group_size)
                for group in batch.discarded:
                    self._tell_discarded(group)
                run.rollouts_wake.set()
                return batch.groups
            self._act_waiting()
            await run.background.watch(wait_for_rollouts(run))
            self._waiting_for = ""
        return None

    def _tell_discarded(self, group: Group) -> None:
        run = self._run
        run.grade_seconds.pop(group.ordinal, None)
        outcome: GroupOutcome = "requeued" if group.ordinal in run.stages.buffer.to_restart else "dropped"
        run.emit(
            GroupFinished(
                seconds=run.seconds,
                ordinal=group.ordinal,
                outcome=outcome,
                prompt=group.trajectories[0].prompt,
                lost=group.trajectories,
            )
        )

    def _act(self, doing: Doing) -> None:
        self._run.emit(Activity(seconds=self._run.seconds, worker="trainer", doing=doing))

    def _act_waiting(self) -> None:
        before, self._waiting_for = self._waiting_for, self._run.stages.buffer.waiting_for()
        if self._waiting_for != before:
            self._act(Doing("waiting", self._waiting_for))
