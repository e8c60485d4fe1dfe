"""The rollout loop: starts a group whenever the gate and the engines have room for it.

    gate admits ─► workflow (generate, grade) ─► buffer

It never waits for training. `running_groups.py` runs the groups; on live traffic, clients start them
(`live_rollouts.py`).
"""

import asyncio
from collections.abc import Callable

from freerun.controller.running_groups import RunningGroups
from freerun.controller.stages import RunContext
from freerun.types import Prompt


class RolloutLoop:
    """Runs until stopped; a group takes its place in the gate at admission."""

    def __init__(self, run: RunContext, *, on_admission: Callable[[], None]) -> None:
        self._run = run
        self._on_admission = on_admission
        """Called after each round of admissions."""
        self._group_size = run.recipe.sampling.group_size
        self._groups = RunningGroups(run, self)

    async def run(self) -> None:
        run = self._run
        while True:
            run.rollouts_wake.clear()
            for prompt in self._admit():
                self._groups.start(prompt)
            self._on_admission()
            run.queues.look()
            await run.rollouts_wake.wait()

    async def stop(self, loop: asyncio.Task[None]) -> None:
        """Abort `loop`, the task of `run`, and the running groups."""
        await self._groups.stop(loop)

    def enter(self) -> bool:
        """Do nothing: the group took its place at admission."""
        return True

    def leave(self) -> None:
        """Return the capacity of a group that was given up to the gate."""
        self._run.stages.gate.give_back(self._group_size)

    def _admit(self) -> list[Prompt]:
        """The prompts that may start now: prompts to restart first, then new ones."""
        run, gate, buffer = self._run, self._run.stages.gate, self._run.stages.buffer
        starts_whole_batches = run.recipe.buffer.starts_whole_batches
        num_wanted = self._num_missing() if starts_whole_batches else run.slots.num_free(buffer.num_running)
        prompts: list[Prompt] = []
        while len(prompts) < num_wanted and gate.capacity >= self._group_size:
            prompt = self._next_prompt()
            gate.start(self._group_size)
            buffer.start(prompt.ordinal, gate.version)
            prompts.append(prompt)
        return prompts

    def _num_missing(self) -> int:
        """Groups needed to complete the next whole batch; 0 while any group is running.

        Failed and filtered groups are replaced only after the rest of their batch has finished, so what the
        engine of a synchronous run batches together depends only on the seed.
        """
        counts, groups_per_batch = self._run.stages.buffer.counts, self._run.recipe.train.prompts_per_step
        return 0 if counts.running else groups_per_batch - counts.ready % groups_per_batch

    def _next_prompt(self) -> Prompt:
        """The next prompt to restart, else the next one of the stream that the curriculum does not skip."""
        source, buffer = self._run.stages.source, self._run.stages.buffer
        if owed := buffer.to_restart:
            return source.at(owed[0])
        while self._run.stages.curriculum.passes_over((prompt := source.take()).key):
            buffer.pass_over(prompt.ordinal)
            self._groups.tell(prompt.ordinal, "passed_over")
        return prompt
