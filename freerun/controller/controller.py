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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.buffer.groups import Outcome
from freerun.config.recipe import Recipe
from freerun.controller.background import Background
from freerun.controller.checkpoint import ControllerState
from freerun.controller.setbacks import Setbacks
from freerun.controller.slots import Slots
from freerun.controller.stall import wait_while_moving
from freerun.data.curriculum import Curriculum
from freerun.data.source import PromptStream
from freerun.errors import FreerunError, RolloutError, WorkerError
from freerun.evaluation.held_out import HeldOut
from freerun.events.events import (
    Activity,
    GroupFinished,
    Listener,
    StepFinished,
    WeightsLoaded,
)
from freerun.protocols import Grader, Trainer, VersionedGenerator, Workflow
from freerun.types import Group, Prompt, Publication, Trajectory

REPLACE_SECONDS = 10.0
"""Left to the pool, beyond `stall_seconds`: it replaces an engine that is stuck, and the run need not end."""

SaveCheckpoint = Callable[[ControllerState], Coroutine[Any, Any, None]]
"""Called between two steps: the call itself asks the trainer for its weights, awaiting it writes them out."""


@dataclass(frozen=True)
class Stages:
    """The stages of a run, by their protocols."""

    source: PromptStream
    workflow: Workflow
    evaluation_workflow: Workflow
    generator: VersionedGenerator
    grader: Grader
    gate: StalenessGate
    buffer: TrajectoryBuffer
    trainer: Trainer
    curriculum: Curriculum = field(default_factory=Curriculum)


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
        self.version = version
        self._recipe = recipe
        self._stages = stages
        self._emit = emit
        self._save_checkpoint = save_checkpoint
        self._loop = asyncio.get_running_loop()
        self._start_time = self._loop.time() - seconds
        self._rollouts_wake = asyncio.Event()
        self._training_wake = asyncio.Event()
        self._slots = Slots(
            stages.generator,
            num_slots=recipe.engine.num_slots,
            group_size=recipe.sampling.group_size,
            on_free=self._rollouts_wake.set,
        )
        self._stop = asyncio.Event()
        self._background = Background()
        self._groups: set[asyncio.Task[None]] = set()
        self._lost_workers = lost_workers
        """Each raises when a worker is lost that cannot be replaced."""
        self._loading: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._held_out = HeldOut(
            stages.source.held_out(recipe.eval.num_prompts),
            stages.evaluation_workflow,
            stages.generator,
            stages.grader,
            num_samples=recipe.eval.num_samples,
            emit=emit,
            clock=lambda: self.seconds,
        )
        self._waiting_for = ""
        """What the trainer waits for, as it was last said; empty while it does not wait."""
        self._saved_version = version
        self._setbacks = Setbacks(
            max_failures=recipe.reward.max_failures_in_row, groups_per_batch=recipe.train.prompts_per_step
        )

    @property
    def seconds(self) -> float:
        """The run's clock: time since its first start, without the gaps between sessions."""
        return self._loop.time() - self._start_time

    @property
    def is_synchronous(self) -> bool:
        return self._recipe.buffer.max_staleness == 0

    def request_stop(self) -> None:
        """Finish the step under way, save, and return from `run`."""
        self._stop.set()
        self._training_wake.set()

    async def run(self) -> None:
        """Train to the end, or until a stop is requested; leaves a checkpoint of the last version."""
        for lost_worker in self._lost_workers:
            self._background.start(lost_worker)
        try:
            await self._background.watch(self._load(self._stages.trainer.publish()))
            if self.version == 0 and self._recipe.warm_start.num_steps:
                self._save()  # so that the warm start is never done twice
            rollouts = self._background.start(self._run_rollouts())
            await self._run_training()
            await self._stop_rollouts(rollouts)
            await self._background.watch(self._finish())
        except FreerunError:
            await self._save_what_is_left()
            raise
        finally:
            await self._background.cancel()

    async def _finish(self) -> None:
        """Save first, evaluate the last version while the files are written."""
        await self._save_last()
        if self._loading is not None:
            await self._loading
        evaluation = self._background.start(self._held_out.evaluate_last(self.version))
        stop = self._background.start(_wait(self._stop))
        await asyncio.wait({evaluation, stop}, return_when=asyncio.FIRST_COMPLETED)
        evaluation.cancel()
        if self._saving is not None:
            await self._saving

    async def _save_last(self) -> None:
        if self._saving is not None:
            await self._saving
        if self._saved_version != self.version:
            self._save()

    async def _save_what_is_left(self) -> None:
        """When rollouts fail for good the trainer is still whole: keep the steps since the last checkpoint."""
        try:
            await self._save_last()
            if self._saving is not None:
                await self._saving
        except FreerunError:
            pass  # it is the trainer that is gone; the newest checkpoint stands

    # ---- rollouts -------------------------------------------------------------------------------

    async def _run_rollouts(self) -> None:
        """Start a rollout whenever the gate and the engines have room for it."""
        while True:
            self._rollouts_wake.clear()
            for prompt in self._admit():
                group = self._background.start(self._run_group(prompt, self._stages.gate.version))
                self._groups.add(group)
                group.add_done_callback(self._groups.discard)
            if self._waiting_for:
                self._act_waiting()  # what was said before the first rollouts started is no longer true
            await self._rollouts_wake.wait()

    def _admit(self) -> list[Prompt]:
        """The prompts that may start now: first those that are owed from before, then new ones."""
        gate, buffer, group_size = self._stages.gate, self._stages.buffer, self._recipe.sampling.group_size
        starts_whole_batches = self._recipe.buffer.starts_whole_batches
        num_wanted = self._num_missing() if starts_whole_batches else self._slots.num_free(buffer.counts.running)
        prompts: list[Prompt] = []
        while len(prompts) < num_wanted and gate.capacity >= group_size:
            prompt = self._next_prompt()
            gate.start(group_size)
            buffer.start(prompt.ordinal, gate.version)
            prompts.append(prompt)
        return prompts

    def _num_missing(self) -> int:
        """Groups that make the next whole batch; none while any is running.

        What failed or was filtered is replaced only when the rest of its batch has finished: what an engine of a
        synchronous run batches together then depends on nothing but the seed.
        """
        counts, groups_per_batch = self._stages.buffer.counts, self._recipe.train.prompts_per_step
        return 0 if counts.running else groups_per_batch - counts.ready % groups_per_batch

    def _next_prompt(self) -> Prompt:
        """What is owed from before, then the stream, but for the problems that rest."""
        source, buffer = self._stages.source, self._stages.buffer
        if owed := buffer.to_restart:
            return source.at(owed[0])
        while self._stages.curriculum.passes_over((prompt := source.take()).key):
            buffer.pass_over(prompt.ordinal)
            self._emit(GroupFinished(seconds=self.seconds, ordinal=prompt.ordinal, outcome="passed_over"))
        return prompt

    async def _run_group(self, prompt: Prompt, start_version: int) -> None:
        """One prompt to one group in the buffer; whatever the workflow raises becomes a counted failure."""
        stages = self._stages
        try:
            with self._slots.of_group() as generator:
                trajectories = await stages.workflow(prompt, generator, stages.grader)
            self._require_whole(trajectories)
            group = Group(ordinal=prompt.ordinal, start_version=start_version, trajectories=trajectories)
        except Exception as error:  # the edge of user code: a failure is data
            self._fail_group(prompt, error)
        else:
            num_solved = sum(trajectory.reward.is_correct for trajectory in trajectories)
            stages.curriculum.note(prompt.key, num_solved / len(trajectories))
            outcome = stages.buffer.add(group)
            if outcome != "buffered":
                stages.gate.give_back(self._recipe.sampling.group_size)
            self._emit(_describe_group(self.seconds, group, outcome))
            self._setbacks.note_finished(is_filtered=outcome == "filtered")
        self._rollouts_wake.set()
        self._training_wake.set()

    def _require_whole(self, trajectories: Sequence[Trajectory]) -> None:
        group_size = self._recipe.sampling.group_size
        if len(trajectories) != group_size:
            raise RolloutError(
                f"the workflow returned {len(trajectories)} trajectories for a group of {group_size}; "
                "return one for each sample"
            )

    def _fail_group(self, prompt: Prompt, error: Exception) -> None:
        self._stages.buffer.fail(prompt.ordinal)
        self._stages.gate.give_back(self._recipe.sampling.group_size)
        self._emit(
            GroupFinished(seconds=self.seconds, ordinal=prompt.ordinal, outcome="failed", reason=str(error))
        )
        self._setbacks.note_failure(prompt.key, error)

    async def _stop_rollouts(self, rollouts: asyncio.Task[None]) -> None:
        """Abort what is under way; the buffer still knows it as running, so a checkpoint owes it."""
        tasks = [rollouts, *self._groups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- training -------------------------------------------------------------------------------

    async def _run_training(self) -> None:
        """Train whenever a batch is ready; each step's weights are on their way while the next one runs."""
        while self.version < self._recipe.train.num_steps:
            began = self._loop.time()
            groups = await self._next_batch()
            if groups is None:
                return
            waited = self._loop.time() - began
            self._act("training")
            # Not watched: a step is always brought to its end, so that trainer and buffer are of one version.
            result = await self._stages.trainer.step(groups)
            self.version = result.version
            step_seconds = self._loop.time() - began - waited
            self._emit(
                StepFinished(
                    seconds=self.seconds,
                    result=result,
                    groups=tuple(groups),
                    step_seconds=step_seconds,
                    wait_seconds=waited,
                )
            )
            # The buffer of the version before last is written next: everyone must have left it.
            if self._loading is not None:
                await self._background.watch(self._loading)
            self._loading = self._background.start(self._load(self._stages.trainer.publish()))
            is_due = self.version - self._saved_version >= self._recipe.checkpoint.every_steps
            if is_due and self._is_idle(self._saving):
                self._save()

    async def _next_batch(self) -> Sequence[Group] | None:
        """The next batch, oldest first; None when a stop was requested."""
        buffer = self._stages.buffer
        while not self._stop.is_set():
            self._training_wake.clear()
            if (batch := buffer.take(self.version)) is not None:
                self._stages.gate.give_back(len(batch.discarded) * self._recipe.sampling.group_size)
                for ordinal in batch.discarded:
                    outcome: Outcome = "requeued" if ordinal in buffer.to_restart else "dropped"
                    self._emit(GroupFinished(seconds=self.seconds, ordinal=ordinal, outcome=outcome))
                self._rollouts_wake.set()
                return batch.groups
            self._act_waiting()
            await self._background.watch(self._wait_for_rollouts())
            self._waiting_for = ""
        return None

    async def _wait_for_rollouts(self) -> None:
        """Until a group finishes; if for `stall_seconds` no token and no grade comes, say what is missing."""
        seconds = self._recipe.runtime.stall_seconds
        wake, patience = self._training_wake, seconds + REPLACE_SECONDS
        if not await wait_while_moving(wake, self._progress, stall_seconds=patience):
            missing = self._stages.generator.missing()
            raise WorkerError(
                f"nothing was generated or graded for {seconds:.0f} s; waiting for "
                f"{self._stages.buffer.waiting_for()}{f'; {missing}' if missing else ''}"
            )

    def _progress(self) -> tuple[int, int, int]:
        """Changes while anything is generated or graded, or an engine is replaced."""
        generator = self._stages.generator
        num_tokens = sum(stats.num_tokens for stats in generator.stats())
        return self._stages.grader.num_graded, num_tokens, generator.num_ready

    async def _load(self, publishing: Awaitable[Publication]) -> None:
        """Bring the trainer's version into every engine; the gate opens when all have confirmed it."""
        published = await publishing
        await self._stages.generator.load(published)
        self._emit(WeightsLoaded(seconds=self.seconds, version=published.version, checksum=published.checksum))
        is_last = published.version == self._recipe.train.num_steps
        if published.version % self._recipe.eval.every_steps == 0 and not is_last:
            evaluation = self._held_out.begin(published.version)
            if self.is_synchronous:
                await evaluation
            else:
                self._background.start(evaluation)
        self._stages.gate.advance(published.version)
        self._rollouts_wake.set()

    # ---- beside the loops -----------------------------------------------------------------------

    def _save(self) -> None:
        """Begin a checkpoint of the version the trainer has now; it is written out beside the next step.

        Not a coroutine: the state and the trainer's weights must be of one version, so both are captured
        before the training loop goes on.
        """
        self._saved_version = self.version
        state = ControllerState(
            version=self.version,
            cursor=self._stages.source.cursor,
            buffer=self._stages.buffer.snapshot(),
            seconds=self.seconds,
            data_fingerprint=self._stages.source.fingerprint,
            resting=self._stages.curriculum.resting,
        )
        self._saving = self._background.start(self._save_checkpoint(state))

    def _is_idle(self, task: asyncio.Task[None] | None) -> bool:
        return task is None or task.done()

    def _act(self, doing: str) -> None:
        self._emit(Activity(seconds=self.seconds, worker="trainer", doing=doing))

    def _act_waiting(self) -> None:
        before, self._waiting_for = self._waiting_for, self._stages.buffer.waiting_for()
        if self._waiting_for != before:
            self._act(f"waiting for {self._waiting_for}")


def _describe_group(seconds: float, group: Group, outcome: Outcome) -> GroupFinished:
    rewards = [trajectory.reward.value for trajectory in group.trajectories]
    return GroupFinished(
        seconds=seconds,
        ordinal=group.ordinal,
        outcome=outcome,
        num_tokens=sum(len(trajectory.completion.token_ids) for trajectory in group.trajectories),
        mean_reward=sum(rewards) / len(rewards),
    )


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
