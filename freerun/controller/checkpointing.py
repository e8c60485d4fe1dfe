"""When checkpoints are written: one at a time, in the background."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from freerun.controller.checkpoint import ControllerState
from freerun.controller.stages import RunContext

SaveCheckpoint = Callable[[ControllerState], Coroutine[Any, Any, None]]
"""Called between two steps. The call requests the trainer's weights; awaiting the result writes them."""


class Checkpointing:
    """Tracks the last saved version and the checkpoint being written."""

    def __init__(self, run: RunContext, save: SaveCheckpoint, *, version: int, saves_evaluated: bool) -> None:
        self._run = run
        self._saves_evaluated = saves_evaluated
        """Whether each evaluated version needs a checkpoint, because it may be the best."""
        self._save = save
        self._saved_version = version
        self._writing: asyncio.Task[None] | None = None

    async def save_if_due(self, version: int) -> None:
        """Start a checkpoint after `every_steps` steps, unless the previous one is still being written.

        A checkpoint of a version that will be evaluated is never skipped: the trainer waits for the previous one.
        """
        is_due = version - self._saved_version >= self._run.recipe.checkpoint.every_steps
        if self._saves_evaluated and self._run.recipe.eval.is_due(version):
            if self._writing is not None:
                await self._run.background.watch(self._writing)
            self.save(version)
        elif is_due and (self._writing is None or self._writing.done()):
            self.save(version)

    def save(self, version: int) -> None:
        """Start a checkpoint of the trainer's current version; it is written during the next step.

        Not a coroutine: state and weights must have the same version, so both are captured before the training
        loop continues.
        """
        self._saved_version = version
        stages = self._run.stages
        state = ControllerState(
            version=version,
            cursor=stages.source.cursor,
            buffer=stages.buffer.snapshot(),
            seconds=self._run.seconds,
            data_fingerprint=stages.source.fingerprint,
            resting=stages.curriculum.resting,
            ahead=stages.gate.ahead if self._run.recipe.keeps_fresh else None,
        )
        self._writing = self._run.background.start(self._save(state))

    async def save_last(self, version: int) -> None:
        """Start a checkpoint of this version unless it is already saved."""
        await self.finish()
        if self._saved_version != version:
            self.save(version)

    async def finish(self) -> None:
        """Wait until the checkpoint being written is on disk."""
        if self._writing is not None:
            await self._writing
