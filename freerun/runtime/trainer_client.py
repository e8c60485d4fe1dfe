"""The trainer the controller sees: typed calls on the trainer's process, each answered or an error.

A trainer that dies, falls silent or makes no progress ends the run with its traceback: its weights are
gone, and `--resume` continues from the newest checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from freerun.config.runtime import RuntimeConfig
from freerun.errors import CheckpointError, WorkerError
from freerun.processes.link import Link
from freerun.runtime.messages import (
    FromTrainer,
    Progress,
    Publish,
    Published,
    Save,
    Saved,
    StartTrainer,
    StepDone,
    Supervise,
    Supervised,
    ToTrainer,
    TrainerReady,
    TrainStep,
)
from freerun.types import Demonstration, Group, Publication, StepResult

R = TypeVar("R")
WATCH_SECONDS = 1.0


class TrainerClient:
    """One trainer process; implements `protocols.Trainer`."""

    def __init__(
        self,
        child: Link[FromTrainer],
        *,
        config: RuntimeConfig,
        on_progress: Callable[[str], None],
    ) -> None:
        self._child = child
        self._config = config
        self._on_progress = on_progress
        self._patience_seconds = config.start_seconds
        self._answers: dict[type[FromTrainer], asyncio.Future[FromTrainer]] = {}
        """Commands under way, by the kind of their answer: there is at most one of each."""
        self._last_progress: dict[type[FromTrainer], float] = {}
        self._loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._watch())]

    async def wait_for_loss(self) -> None:
        """Never returns; raises when the process is gone, whether or not anything was asked of it."""
        await asyncio.shield(self._loss)

    async def start(self, message: StartTrainer) -> TrainerReady:
        """Load model and optimizer; returns what the trainer says of their size."""
        ready = await self._received(self._send(message, TrainerReady), TrainerReady)
        self._patience_seconds = self._config.stall_seconds
        return ready

    async def step(self, groups: Sequence[Group]) -> StepResult:
        answer = self._send(TrainStep(groups=tuple(groups)), StepDone)
        return (await self._received(answer, StepDone)).result

    async def supervise(self, demonstrations: Sequence[Demonstration], lr: float) -> float:
        """One warm-start update; returns the loss before it."""
        answer = self._send(Supervise(demonstrations=tuple(demonstrations), lr=lr), Supervised)
        return (await self._received(answer, Supervised)).loss

    # The next two are no coroutines: the command is sent by the call, and so before any later step.

    def publish(self) -> Awaitable[Publication]:
        return self._finish_publish(self._send(Publish(), Published))

    async def _finish_publish(self, answer: asyncio.Future[FromTrainer]) -> Publication:
        return (await self._received(answer, Published)).published

    def save(self, directory: str, *, version: int) -> Awaitable[None]:
        return self._finish_save(self._send(Save(directory=directory, version=version), Saved))

    async def _finish_save(self, answer: asyncio.Future[FromTrainer]) -> None:
        saved = await self._received(answer, Saved)
        if saved.error:
            raise CheckpointError(f"{saved.directory}: the checkpoint could not be written ({saved.error})")

    async def close(self) -> None:
        """End the process; returns when it is gone."""
        for task in self._tasks:
            task.cancel()
        self._child.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._child.wait(timeout_seconds=10)
        if self._loss.done():
            self._loss.exception()  # seen, or asyncio complains about it at exit

    def _send(self, message: ToTrainer, answer_type: type[Any]) -> asyncio.Future[FromTrainer]:
        """Send a command; its answer, or the loss of the process, is the future's result."""
        answer: asyncio.Future[FromTrainer] = asyncio.get_running_loop().create_future()
        assert answer_type not in self._answers, f"a second command is sent before its {answer_type.__name__}"
        self._answers[answer_type] = answer
        self._last_progress[answer_type] = asyncio.get_running_loop().time()
        self._child.send(message)
        return answer

    async def _received(self, answer: asyncio.Future[FromTrainer], answer_type: type[R]) -> R:
        either: set[asyncio.Future[Any]] = {answer, self._loss}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._loss.result()
        received = answer.result()
        assert isinstance(received, answer_type)
        return received

    async def _serve(self) -> None:
        """Take in the trainer's messages until it is gone."""
        try:
            while (message := await self._child.receive()) is not None:
                self._take_in(message)
        except WorkerError as error:
            self._give_up(f"the trainer sent nonsense ({error})")
            return
        await self._child.wait(timeout_seconds=5)
        self._lose(f"the trainer is gone: {self._child.describe_end()}")

    def _take_in(self, message: FromTrainer) -> None:
        if isinstance(message, Progress):
            # Of a step or a supervised update; a checkpoint that is being written has its own clock.
            for answer_type in (StepDone, Supervised):
                self._last_progress[answer_type] = asyncio.get_running_loop().time()
            self._on_progress(message.doing)
        elif (answer := self._answers.pop(type(message), None)) is not None and not answer.done():
            answer.set_result(message)

    async def _watch(self) -> None:
        """Kill a trainer that is silent, or makes no progress on what was asked of it."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            has_started = TrainerReady not in self._answers
            if has_started and self._child.seconds_silent > self._config.silence_seconds:
                self._give_up(f"the trainer fell silent for {self._config.silence_seconds:.0f} s")
            before = asyncio.get_running_loop().time() - self._patience_seconds
            for asked in [kind for kind in self._answers if self._last_progress[kind] < before]:
                seconds = self._patience_seconds
                self._give_up(f"the trainer made no progress towards {asked.__name__} for {seconds:.0f} s")

    def _give_up(self, reason: str) -> None:
        self._child.kill()
        self._lose(f"{reason}; it was killed: {self._child.describe_end()}")

    def _lose(self, reason: str) -> None:
        if not self._loss.done():
            self._loss.set_exception(WorkerError(reason))
