"""The trainer of a replay: the same process as in a run, fed with recorded batches, without engines and graders.

Settings may change between two steps, as when a run is resumed with other settings: then the state is written to a
scratch directory and another process starts from it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from freerun.buffer.groups import BufferState, LedgerState
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint, ControllerState
from freerun.processes.local import LocalLauncher, Seat
from freerun.processes.placement import trainer_names
from freerun.session.assembly import make_trainer
from freerun.session.run_directory import RunDirectory
from freerun.session.trainer_start import trainer_start
from freerun.types import Group, Publication, StepResult, WeightRoute
from freerun.weights.buffers import create_buffers, shared_route
from freerun.workers.trainer_client import TrainerClient

OnVersion = Callable[[WeightRoute, Publication], None]
"""Called in a thread with each version, including the first one, before the next is trained."""


class Retrainer:
    """One trainer at a time; `close` ends it."""

    def __init__(
        self,
        run: RunDirectory,
        scratch: Path,
        *,
        num_threads: int,
        on_version: OnVersion | None = None,
        reference: Path | None = None,
    ) -> None:
        """`reference` is where the policy of version 0 is kept if a KL term needs it; if None, it is not kept."""
        self._run = run
        self._on_version = on_version
        self._route = shared_route(create_buffers(f"freerun-replay-{run.path.name}"))
        self._scratch = scratch
        self._reference = reference or scratch / "reference"
        self._num_threads = num_threads
        self._seats: dict[str, Seat] = {}
        self._launcher = LocalLauncher(scratch, self._seats, weights=self._route)
        self._trainer: TrainerClient | None = None

    @property
    def trainer(self) -> TrainerClient:
        assert self._trainer is not None, "start it first"
        return self._trainer

    async def start(self, recipe: Recipe, checkpoint: Checkpoint | None) -> None:
        """Start from the checkpoint, or from the model of the recipe."""
        self._seats |= dict.fromkeys(trainer_names(recipe), Seat(self._num_threads))
        self._trainer = await make_trainer(recipe, self._launcher, on_progress=lambda doing: None)
        await self._trainer.start(
            trainer_start(
                recipe,
                checkpoint,
                companions=self._run.model,
                reference=self._reference_for(checkpoint),
                weights=self._route,
            )
        )

    async def change(self, recipe: Recipe, *, version: int) -> None:
        """Continue with other settings."""
        directory = self._scratch / f"step-{version}"
        await self.save(directory, version=version)
        await self.trainer.close()
        await self.start(recipe, weights_alone(directory, version))

    async def step(self, groups: tuple[Group, ...]) -> tuple[StepResult, str]:
        """Train one batch; returns the result, and the checksum of the new version."""
        result = await self.trainer.step(groups)
        published = await self.trainer.publish()
        await self.give(published)
        return result, published.checksum

    async def give(self, published: Publication) -> None:
        """Pass the version to `on_version`."""
        if self._on_version is not None:
            await asyncio.to_thread(self._on_version, self._route, published)

    async def save(self, directory: Path, *, version: int) -> None:
        """Write model and optimizer in the form of a checkpoint."""
        directory.mkdir(parents=True, exist_ok=True)
        await self.trainer.save(str(directory), version=version)

    async def close(self) -> None:
        if self._trainer is not None:
            await self._trainer.close()
        await self._launcher.close()

    def _reference_for(self, checkpoint: Checkpoint | None) -> Path:
        """The reference policy's directory: written at version 0; later it is this one, or the run's."""
        is_new = checkpoint is None or checkpoint.state.version == 0
        return self._reference if is_new or self._reference.is_dir() else self._run.reference


def weights_alone(directory: Path, version: int) -> Checkpoint:
    """A checkpoint that suffices for a trainer: it has no controller state."""
    nothing = BufferState(version=version, ready=(), to_restart=(), done=LedgerState(mark=0, above=()), totals={})
    state = ControllerState(version=version, cursor=0, buffer=nothing, seconds=0.0, data_fingerprint="")
    return Checkpoint(directory, state, has_optimizer=True)
