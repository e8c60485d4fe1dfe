"""The clocks of the trainer: a step and a checkpoint beside it have one each, and neither hides a stall."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_groups import a_group
from sessions import as_few_sequences_as_possible, make_sessions
from training_batches import make_groups

from freerun.config.recipe import RuntimeConfig
from freerun.errors import WorkerError
from freerun.model import new_directory
from freerun.model.new_directory import reported_growth
from freerun.processes.frames import to_frame
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Doing, Group, StepResult, TrainedTrajectory
from freerun.workers.messages import (
    BatchPart,
    FromTrainer,
    Progress,
    Saved,
    Saving,
    StepDone,
    TrainedPart,
    TrainStep,
)
from freerun.workers.parts import PART_BYTES, split_batch, split_trained
from freerun.workers.trainer_client import TrainerClient

STALL_SECONDS = 30.0


class FakeRank:
    """A process of the trainer that says what the test puts into its inbox."""

    is_placed = True
    was_taken_away = False
    seconds_silent = 0.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.sent: list[Any] = []
        self.inbox: asyncio.Queue[FromTrainer | None] = asyncio.Queue()

    def send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> FromTrainer | None:
        return await self.inbox.get()

    def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.inbox.put_nowait(None)

    async def wait(self, timeout_seconds: float) -> None:
        pass

    def describe_end(self) -> str:
        return f"{self.name} was killed"


def with_trainer(
    act: Callable[[TrainerClient, FakeRank], Awaitable[None]], *, num_ranks: int = 1, part_bytes: int = PART_BYTES
) -> None:
    async def main() -> None:
        ranks = [FakeRank(f"trainer-{rank}") for rank in range(num_ranks)]
        config = RuntimeConfig(stall_seconds=STALL_SECONDS, start_seconds=STALL_SECONDS)
        trainer = TrainerClient(ranks, config=config, on_progress=lambda doing: None, part_bytes=part_bytes)
        try:
            await act(trainer, ranks[0])
        finally:
            await trainer.close()

    run_in_virtual_time(main())


async def say(rank: FakeRank, message: FromTrainer) -> None:
    """Ten times, over more than three times the patience."""
    for _ in range(10):
        await asyncio.sleep(STALL_SECONDS / 3)
        rank.inbox.put_nowait(message)


def test_a_checkpoint_may_take_long_as_long_as_it_grows() -> None:
    async def act(trainer: TrainerClient, rank: FakeRank) -> None:
        saving = asyncio.ensure_future(trainer.save("checkpoint", version=1))
        await say(rank, Saving())
        rank.inbox.put_nowait(Saved(directory="checkpoint", error=""))
        await saving

    with_trainer(act)


@pytest.mark.parametrize(
    ("message", "stalled"),
    [(Progress(doing=Doing("training")), "Saved"), (Saving(), "StepDone")],
    ids=["save", "step"],
)
def test_progress_of_one_thing_does_not_hide_the_stall_of_another(message: FromTrainer, stalled: str) -> None:
    async def act(trainer: TrainerClient, rank: FakeRank) -> None:
        under_way: list[asyncio.Future[Any]] = [asyncio.ensure_future(trainer.save("checkpoint", version=1))]
        under_way.append(asyncio.ensure_future(trainer.step([])))
        await say(rank, message)
        for error in await asyncio.gather(*under_way, return_exceptions=True):
            assert f"made no progress towards {stalled} for 30 s; it was killed" in str(error)

    with_trainer(act)


def test_a_stall_of_several_ranks_tells_of_all() -> None:
    async def act(trainer: TrainerClient, rank: FakeRank) -> None:
        with pytest.raises(WorkerError, match="all ranks were killed: trainer-0 was killed; trainer-1 was killed"):
            await trainer.step([])

    with_trainer(act, num_ranks=2)


@pytest.mark.parametrize(("part_bytes", "num_parts"), [(PART_BYTES, 1), (2600, 3), (1, 6)])
def test_a_batch_travels_in_parts_that_fit_into_frames(part_bytes: int, num_parts: int) -> None:
    groups = [a_group(ordinal, 0, 0, [0.0, 1.0]) for ordinal in range(6)]

    async def act(trainer: TrainerClient, rank: FakeRank) -> None:
        step = asyncio.ensure_future(trainer.step(groups))
        await asyncio.sleep(0)
        assert [type(message) for message in rank.sent] == [BatchPart] * (num_parts - 1) + [TrainStep]
        assert [group.ordinal for message in rank.sent for group in message.groups] == list(range(6))
        trained = [
            TrainedTrajectory(log_weights=np.full(40, n, np.float16), advantage=float(n), clipped=np.arange(n))
            for n in range(12)
        ]
        for part in split_trained(trained, part_bytes=part_bytes):
            rank.inbox.put_nowait(TrainedPart(trajectories=part))
        rank.inbox.put_nowait(StepDone(result=StepResult(version=1, metrics={}, staleness_counts={})))
        assert [trajectory.num_clipped for trajectory in (await step).trajectories] == list(range(12))

    with_trainer(act, part_bytes=part_bytes)


def test_a_part_is_estimated_at_no_less_than_it_takes() -> None:
    sessions = as_few_sequences_as_possible(make_sessions(branches=True, has_turns=True))
    for trajectory in (t for group in (*make_groups(), *sessions) for t in group.trajectories):
        group = Group(ordinal=0, start_version=0, trajectories=(trajectory,))
        num_bytes = len(to_frame(TrainStep(groups=(group,))))
        assert len(split_batch([group, group], part_bytes=2 * num_bytes - 1)) == 2, num_bytes


def test_growth_is_what_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_directory, "GROWTH_SECONDS", 0.01)
    reports: asyncio.Queue[None] = asyncio.Queue()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def report() -> None:
            loop.call_soon_threadsafe(reports.put_nowait, None)

        path = tmp_path / "model" / "weights"
        path.parent.mkdir()
        with path.open("wb") as file, reported_growth(tmp_path, report):
            file.truncate(1 << 20)
            await asyncio.sleep(0.2)
            assert reports.empty(), "a length is no progress"
            file.write(b"1" * (1 << 19))
            file.flush()
            async with asyncio.timeout(60):
                await reports.get()

    asyncio.run(main())
