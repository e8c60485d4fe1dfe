"""Replay: trains a run's recorded batches again and compares every version with its recorded checksum.

    store ─► batches ─► trainer ─► checksum, metrics ─► as recorded?

The trainer runs as the same process as in a run, with the same messages; engines, graders and controller are not
needed. The order of batches was determined by timing, and is recorded. Nothing is written into the run.
"""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freerun.controller.checkpoint import MODEL_DIRECTORY
from freerun.errors import FreerunError
from freerun.events.batches import recorded_batch, recorded_checksums
from freerun.events.reader import RunReader
from freerun.events.schema import StepRow, TrajectoryRow
from freerun.model.new_directory import new_directory, require_vacant
from freerun.replay.difference import Difference, compare_step
from freerun.replay.plan import ReplayPlan
from freerun.replay.retrainer import OnVersion, Retrainer
from freerun.session.sft import sft_learning_rate
from freerun.types import Group, StepResult

ReplayProgress = Callable[[str, int, int], None]
"""Called with the current activity, the number of finished steps, and the total number."""


@dataclass(frozen=True)
class Replayed:
    """The number of compared versions, and the first one that differs."""

    num_versions: int
    """Number of retrained versions, including the one that differs."""
    num_unknown: int
    """Number of versions without a recorded checksum, because the run ended before engines had loaded them."""
    num_same: int
    """Number of versions with the recorded checksum, before the first difference."""
    difference: Difference | None


def replay(
    plan: ReplayPlan,
    *,
    save: Path | None = None,
    on_progress: ReplayProgress,
    on_version: OnVersion | None = None,
) -> Replayed:
    """Train the steps again, up to the first that differs; `save` gets the last one's model if none differs.

    With `on_version`, which uses the versions, it continues after the first difference.
    """
    if save is not None:
        require_vacant(save)
    with tempfile.TemporaryDirectory(prefix="freerun-replay-") as scratch:
        return asyncio.run(_replay(plan, Path(scratch), save, on_progress, on_version))


async def _replay(
    plan: ReplayPlan,
    scratch: Path,
    save: Path | None,
    on_progress: ReplayProgress,
    on_version: OnVersion | None,
) -> Replayed:
    retrainer = Retrainer(plan.run, scratch, num_threads=plan.num_threads, on_version=on_version)
    comparison = Comparison(goes_on=on_version is not None)
    try:
        last = await retrain(plan, retrainer, on_progress, comparison.take)
        if save is not None and comparison.difference is None:
            await _save(retrainer, save, version=plan.last)
        return Replayed(last - plan.start, comparison.num_unknown, comparison.num_same, comparison.difference)
    finally:
        await retrainer.close()


@dataclass(frozen=True)
class Retrained:
    """A step that was trained again, with its record."""

    result: StepResult
    checksum: str
    batch: tuple[Group, ...]
    step: StepRow
    rows: list[TrajectoryRow]
    recorded_checksum: str


class Comparison:
    """Finds the first step that differs from its record."""

    def __init__(self, *, goes_on: bool = False) -> None:
        """With `goes_on`, differences in last bits are noted but do not stop the replay."""
        self.difference: Difference | None = None
        self.num_unknown = 0
        self.num_same = 0
        """Versions before the first difference."""
        self._goes_on = goes_on

    def take(self, trained: Retrained) -> bool:
        """Compare a step; returns whether to train the next one."""
        self.num_unknown += not trained.recorded_checksum
        self.difference = self.difference or compare_step(
            trained.result,
            trained.checksum,
            step=trained.step,
            rows=trained.rows,
            recorded_checksum=trained.recorded_checksum,
        )
        self.num_same += self.difference is None and bool(trained.recorded_checksum)
        return self.difference is None or self._goes_on


async def retrain(
    plan: ReplayPlan,
    retrainer: Retrainer,
    on_progress: ReplayProgress,
    on_step: Callable[[Retrained], bool],
) -> int:
    """Train the plan's steps again, until `on_step` returns False; returns the last version made."""
    return await _Replay(plan, retrainer, on_progress, on_step).run()


class _Replay:
    """Runs the steps one after the other."""

    def __init__(
        self,
        plan: ReplayPlan,
        retrainer: Retrainer,
        on_progress: ReplayProgress,
        on_step: Callable[[Retrained], bool],
    ) -> None:
        self._plan = plan
        self._retrainer = retrainer
        self._on_progress = on_progress
        self._on_step = on_step

    async def run(self) -> int:
        plan = self._plan
        await self._retrainer.start(plan.recipe, plan.checkpoint)
        if plan.sft is not None:
            await self._repeat_sft()
        with RunReader(plan.run.path) as reader:
            checksums = recorded_checksums(reader)
            await self._check_start(checksums.get(plan.start, ""))
            for stretch in plan.stretches:
                if stretch is not plan.stretches[0]:
                    await self._retrainer.change(stretch.recipe, version=stretch.first - 1)
                for version in range(stretch.first, stretch.last + 1):
                    self._on_progress("RL", version - 1 - plan.start, plan.last - plan.start)
                    if not self._on_step(await self._step(reader, version, checksums.get(version, ""))):
                        return version
        return plan.last

    async def _repeat_sft(self) -> None:
        assert self._plan.sft is not None
        num_steps = self._plan.sft.num_steps
        for step, batch in enumerate(self._plan.sft.batches(0)):
            self._on_progress("SFT", step, num_steps)
            await self._retrainer.trainer.supervise(
                batch, sft_learning_rate(self._plan.recipe.sft, step, num_steps=num_steps)
            )

    async def _check_start(self, recorded: str) -> None:
        """Raise if the starting weights are not those of the run: no later version could be equal."""
        published = await self._retrainer.trainer.publish()
        if recorded and published.checksum != recorded:
            raise FreerunError(
                f"version {self._plan.start} cannot be made again: {self._plan.source} has the checksum "
                f"{published.checksum}, recorded was {recorded}; put back what the run was started from, or "
                "replay --from a step after a checkpoint"
            )
        await self._retrainer.give(published)

    async def _step(self, reader: RunReader, version: int, recorded_checksum: str) -> Retrained:
        rows, step = reader.trajectories(version), reader.step(version)
        if step is None or not rows:
            raise FreerunError(
                f"the store {reader.file} has no batch of step {version}; replay --until {version - 1}"
            )
        batch = recorded_batch(rows)
        result, checksum = await self._retrainer.step(batch)
        return Retrained(result, checksum, batch, step, rows, recorded_checksum)


async def _save(retrainer: Retrainer, directory: Path, *, version: int) -> None:
    with new_directory(directory) as temporary:
        await retrainer.save(temporary, version=version)
        for path in temporary.iterdir():
            if path.is_file():
                path.unlink()  # the optimizer's file
        for path in (temporary / MODEL_DIRECTORY).iterdir():
            path.rename(temporary / path.name)
        (temporary / MODEL_DIRECTORY).rmdir()
