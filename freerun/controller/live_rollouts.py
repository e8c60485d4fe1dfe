"""Rollouts on live traffic: clients start the groups; each session is one group.

    session begins ─► registered ─► rated ─► gate has a place? ─► buffer

A session takes its place in the gate only when it is rated: unrated sessions would otherwise keep the gate shut.
"""

import asyncio
from collections.abc import Callable

from freerun.controller.running_groups import RunningGroups
from freerun.controller.stages import RunContext
from freerun.types import Prompt


class LiveRollouts:
    """Takes the place of `RolloutLoop`: records sessions until stopped."""

    def __init__(self, run: RunContext, *, on_admission: Callable[[], None]) -> None:
        self._run = run
        self._on_admission = on_admission
        """Called after each session start, and whenever a group has finished."""
        self._group_size = run.recipe.sampling.group_size
        self._groups = RunningGroups(run, self)
        self._is_open = False
        """Whether sessions may be recorded now."""

    async def run(self) -> None:
        run = self._run
        self._give_up_restarts()
        self._is_open = True
        while True:
            run.rollouts_wake.clear()
            self._on_admission()
            run.queues.look()
            await run.rollouts_wake.wait()

    def start_one(self) -> Prompt | None:
        """Start a group for a session that begins now; None if the session is not recorded."""
        stages = self._run.stages
        if not self._is_open or stages.buffer.num_running >= self._run.recipe.online.max_sessions:
            return None
        prompt = stages.source.take()
        stages.buffer.start(prompt.ordinal, stages.gate.version)
        self._groups.start(prompt)
        self._on_admission()
        return prompt

    async def stop(self, loop: asyncio.Task[None]) -> None:
        """Stop recording; abort `loop`, the task of `run`, and the running groups."""
        self._is_open = False
        await self._groups.stop(loop)

    def enter(self) -> bool:
        """Take a place in the gate for a rated session; False if there is none."""
        gate = self._run.stages.gate
        if gate.capacity < self._group_size:
            return False
        gate.start(self._group_size)
        return True

    def leave(self) -> None:
        """Do nothing: a session that was given up never took a place."""

    def _give_up_restarts(self) -> None:
        """Give up the sessions that were open at the checkpoint: their clients cannot replay them."""
        stages = self._run.stages
        for ordinal in stages.buffer.to_restart:
            stages.buffer.start(ordinal, stages.gate.version)
            self._groups.give_up(ordinal, "unrated", "it was open when the run was stopped")
