"""Rollouts on live traffic: clients start the groups, each one session.

    session begins ─► registered ─► rated ─► gate has a place? ─► buffer

A session takes its place in the gate when it is rated: sessions without a rating would keep the gate shut.
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
        """Called after each session that begins, and whenever a group has finished."""
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
        """Start a group for a session that begins now; None if it is only served."""
        stages = self._run.stages
        if not self._is_open or stages.buffer.num_running >= self._run.recipe.online.max_sessions:
            return None
        prompt = stages.source.take()
        stages.buffer.start(prompt.ordinal, stages.gate.version)
        self._groups.start(prompt)
        self._on_admission()
        return prompt

    async def stop(self, loop: asyncio.Task[None]) -> None:
        """Record no more, and abort `loop`, the task of `run`, and the running groups."""
        self._is_open = False
        await self._groups.stop(loop)

    def enter(self) -> bool:
        """Take a place for a session that has been rated, if there is one."""
        gate = self._run.stages.gate
        if gate.capacity < self._group_size:
            return False
        gate.start(self._group_size)
        return True

    def leave(self) -> None:
        """A session that was given up never had a place."""

    def _give_up_restarts(self) -> None:
        """Sessions that were open at the checkpoint: what their clients said cannot be said again."""
        stages = self._run.stages
        for ordinal in stages.buffer.to_restart:
            stages.buffer.start(ordinal, stages.gate.version)
            self._groups.give_up(ordinal, "unrated", "it was open when the run was stopped")
