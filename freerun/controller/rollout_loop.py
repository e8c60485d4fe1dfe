"""The rollout loop: starts a group whenever the gate and the engines have room for it.

    gate admits ─► workflow (generate, grade) ─► buffer

It never waits for training. A failed group is counted and its capacity returned to the gate.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from freerun.controller.group_check import check_group
from freerun.controller.setbacks import Setbacks
from freerun.controller.slots import Slots
from freerun.controller.stages import RunContext
from freerun.events.events import GroupFinished
from freerun.types import Group, GroupOutcome, Prompt


class RolloutLoop:
    """Runs until stopped; each running group is a background task."""

    def __init__(self, run: RunContext, *, on_admission: Callable[[], None]) -> None:
        recipe = run.recipe
        self._run = run
        self._on_admission = on_admission
        """Called after each round of admissions."""
        self._group_size = recipe.sampling.group_size
        self._groups: set[asyncio.Task[None]] = set()
        self._slots = Slots(
            run.stages.generator,
            num_slots=recipe.engine.num_slots,
            group_size=self._group_size,
            max_sessions=recipe.rollout.max_sessions,
            on_free=run.rollouts_wake.set,
        )
        self._setbacks = Setbacks(
            max_failures=recipe.reward.max_failures_in_row, groups_per_batch=recipe.train.prompts_per_step
        )

    async def run(self) -> None:
        run = self._run
        while True:
            run.rollouts_wake.clear()
            for prompt in self._admit():
                group = run.background.start(self._run_group(prompt, run.stages.gate.version))
                self._groups.add(group)
                group.add_done_callback(self._groups.discard)
            self._on_admission()
            await run.rollouts_wake.wait()

    async def stop(self, loop: asyncio.Task[None]) -> None:
        """Abort running groups; the buffer still counts them as running, so a checkpoint restarts them."""
        tasks = [loop, *self._groups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _admit(self) -> list[Prompt]:
        """The prompts that may start now: first those to restart, then new ones."""
        gate, buffer = self._run.stages.gate, self._run.stages.buffer
        starts_whole_batches = self._run.recipe.buffer.starts_whole_batches
        num_wanted = self._num_missing() if starts_whole_batches else self._slots.num_free(buffer.counts.running)
        prompts: list[Prompt] = []
        while len(prompts) < num_wanted and gate.capacity >= self._group_size:
            prompt = self._next_prompt()
            gate.start(self._group_size)
            buffer.start(prompt.ordinal, gate.version)
            prompts.append(prompt)
        return prompts

    def _num_missing(self) -> int:
        """Groups that complete the next whole batch; none while any is running.

        Failed and filtered groups are replaced only after the rest of their batch has finished. What the engine of
        a synchronous run batches together then depends only on the seed.
        """
        counts, groups_per_batch = self._run.stages.buffer.counts, self._run.recipe.train.prompts_per_step
        return 0 if counts.running else groups_per_batch - counts.ready % groups_per_batch

    def _next_prompt(self) -> Prompt:
        """The next prompt to restart, else the next of the stream that the curriculum does not skip."""
        source, buffer = self._run.stages.source, self._run.stages.buffer
        if owed := buffer.to_restart:
            return source.at(owed[0])
        while self._run.stages.curriculum.passes_over((prompt := source.take()).key):
            buffer.pass_over(prompt.ordinal)
            self._emit(prompt.ordinal, "passed_over")
        return prompt

    async def _run_group(self, prompt: Prompt, start_version: int) -> None:
        """Turn one prompt into one group in the buffer; an exception of the workflow is a counted failure."""
        run, stages = self._run, self._run.stages
        try:
            with self._slots.of_group() as generator:
                trajectories = await stages.workflow(prompt, generator, stages.grader)
            group = Group(ordinal=prompt.ordinal, start_version=start_version, trajectories=trajectories)
            check_group(group, group_size=self._group_size)
        except Exception as error:  # noqa: BLE001 - the edge of user code: a failure is data
            self._fail(prompt, error)
        else:
            self._finish(prompt, group)
        run.rollouts_wake.set()
        run.training_wake.set()

    def _finish(self, prompt: Prompt, group: Group) -> None:
        stages, rewards = self._run.stages, group.rewards
        stages.curriculum.note(prompt.key, sum(reward.is_correct for reward in rewards) / len(rewards))
        outcome = stages.buffer.add(group)
        if outcome != "buffered":
            stages.gate.give_back(self._group_size)
        self._emit(
            group.ordinal,
            outcome,
            num_tokens=sum(trajectory.completion.num_sampled for trajectory in group.trajectories),
            mean_reward=sum(reward.value for reward in rewards) / len(rewards),
        )
        self._setbacks.note_finished(is_filtered=outcome == "filtered")

    def _fail(self, prompt: Prompt, error: Exception) -> None:
        self._run.stages.buffer.fail(prompt.ordinal)
        self._run.stages.gate.give_back(self._group_size)
        self._emit(prompt.ordinal, "failed", reason=str(error))
        self._setbacks.note_failure(prompt.key, error)

    def _emit(self, ordinal: int, outcome: GroupOutcome, **facts: Any) -> None:
        self._run.emit(GroupFinished(seconds=self._run.seconds, ordinal=ordinal, outcome=outcome, **facts))
