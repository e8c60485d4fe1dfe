"""Writing a checkpoint of a run: the trainer's files, then the store, then the seal."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from freerun.controller.checkpoint import CheckpointWriter, ControllerState
from freerun.errors import CheckpointError, FreerunError
from freerun.events.events import CheckpointSaved
from freerun.session.kept_versions import KeptVersions
from freerun.session.lifetime import Lifetime


class Saver:
    """Implements `SaveCheckpoint`; `save_files` is the trainer's `save`."""

    def __init__(
        self,
        life: Lifetime,
        checkpoints: Path,
        save_files: Callable[..., Awaitable[None]],
        *,
        keep: int,
        kept: KeptVersions | None = None,
    ) -> None:
        self._life = life
        self._checkpoints = checkpoints
        self._save_files = save_files
        self._keep = keep
        self._kept = kept
        """Determines which checkpoints are kept besides the newest."""

    def __call__(self, state: ControllerState) -> Coroutine[Any, Any, None]:
        """Request the trainer's files immediately; the returned coroutine does the rest and raises any failure."""
        if self._kept is not None:
            self._kept.expect(state.version)
        try:
            writer = CheckpointWriter(self._checkpoints, state)
        except CheckpointError as error:
            return self._fail(error, state.version)
        return self.finish(writer, self._save_files(str(writer.directory), version=state.version), state.version)

    async def finish(self, writer: CheckpointWriter, saved: Awaitable[None], version: int) -> None:
        """Seal the checkpoint once the trainer has written its files."""
        try:
            await saved
            protected = self._kept.protected() if self._kept else ()
            # Flush the store first: it must never lack steps of the checkpoint, nor the evaluations that decide
            # which older checkpoints are removed.
            await asyncio.to_thread(self._life.flush)
            directory = await writer.seal(keep=self._keep, protected=protected)
        except FreerunError as error:
            await asyncio.to_thread(writer.discard)
            if not isinstance(error, CheckpointError):
                raise  # the error comes from the store or the trainer, and says so
            await self._fail(error, version)
        self._life.emit(CheckpointSaved(seconds=self._life.seconds, version=version, directory=str(directory)))

    async def _fail(self, error: CheckpointError, version: int) -> None:
        self._life.unsaved = f"version {version} was not saved: {error}; {self._life.describe_newest()}"
        raise CheckpointError(self._life.unsaved) from error
