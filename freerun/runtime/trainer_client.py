"""The trainer the controller sees: typed calls on the trainer's process, each answered or an error.

A trainer that dies, falls silent or makes no progress ends the run with its traceback: its weights are
gone, and `--resume` continues from the newest checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from freerun.config.recipe import RuntimeConfig
from freerun.errors import CheckpointError, WorkerError
from freerun.processes.child import Child
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
from freerun.types import Group, Ints, Publication, StepResult

R = TypeVar("R")
WATCH_SECONDS = 1.0


class TrainerClient:
    """One trainer process; implements `protocols.Trainer`."""

    def __init__(
        self,
        child: Child[FromTrainer],
        *,
        config: RuntimeConfig,
        on_progress: Callable[[str], None],
    ) -> None:
        self._child = child
        self._config = config
        self._on_progress = on_progress
        self._last_progress = asyncio.get_running_loop().time()
        self._answers: dict[type[FromTrainer], asyncio.Future[FromTrainer]] = {}
        self._task = asyncio.create_task(self._serve())
        self._error: WorkerError | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    async def start(self, message: StartTrainer) -> int:
        """Load model and optimizer; returns the number of parameters."""
        return (await self._ask(message, TrainerReady, self._config.start_seconds)).num_parameters

    async def step(self, groups: Sequence[Group]) -> StepResult:
        return (await self._ask(TrainStep(groups=tuple(groups)), StepDone, self._config.stall_seconds)).result

    async def supervise(self, sequences: Sequence[tuple[Ints, Ints]], lr: float) -> float:
        """One warm-start update; returns the loss before it."""
        message = Supervise(sequences=tuple(sequences), lr=lr)
        return (await self._ask(message, Supervised, self._config.stall_seconds)).loss

    # The next two are no coroutines: the command is sent by the call, and so before any later step.

    def publish(self) -> Awaitable[Publication]:
        return self._finish_publish(self._send(Publish(), Published))

    async def _finish_publish(self, answer: Awaitable[FromTrainer]) -> Publication:
        return (await self._answer_of("Publish", answer, Published, self._config.stall_seconds)).published

    def save(self, directory: str, *, version: int) -> Awaitable[None]:
        answer = self._send(Save(directory=directory, version=version), Saved)
        return self._finish_save(answer)

    async def _finish_save(self, answer: Awaitable[FromTrainer]) -> None:
        saved = await self._answer_of("Save", answer, Saved, self._config.stall_seconds)
        if saved.error:
            raise CheckpointError(f"{saved.directory}: the checkpoint could not be written ({saved.error})")

    async def close(self) -> None:
        """End the process; returns when it is gone."""
        self._task.cancel()
        self._child.kill()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._child.wait(timeout_seconds=10)

    async def _ask(self, message: ToTrainer, answer_type: type[R], patience_seconds: float) -> R:
        """Send a command and wait for its answer, as long as the process lives and makes progress."""
        answer = self._send(message, answer_type)
        return await self._answer_of(type(message).__name__, answer, answer_type, patience_seconds)

    def _send(self, message: ToTrainer, answer_type: type[Any]) -> asyncio.Future[FromTrainer]:
        answer: asyncio.Future[FromTrainer] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            answer.set_exception(self._error)
            return answer
        self._answers[answer_type] = answer
        self._last_progress = asyncio.get_running_loop().time()
        self._child.send(message)
        return answer

    async def _answer_of(
        self, command: str, answer: Awaitable[FromTrainer], answer_type: type[R], patience_seconds: float
    ) -> R:
        future = asyncio.ensure_future(answer)
        while not future.done():
            await asyncio.wait({future}, timeout=WATCH_SECONDS)
            if not future.done():
                self._check_progress(command, patience_seconds)
        received = future.result()
        assert isinstance(received, answer_type)
        return received

    def _check_progress(self, command: str, patience_seconds: float) -> None:
        stalled_seconds = asyncio.get_running_loop().time() - self._last_progress
        if self._child.seconds_silent > self._config.silence_seconds:
            self._give_up(f"the trainer fell silent for {self._config.silence_seconds:.0f} s during {command}")
        elif stalled_seconds > patience_seconds:
            self._give_up(f"the trainer made no progress on {command} for {patience_seconds:.0f} s")

    def _give_up(self, reason: str) -> None:
        self._child.kill()
        self._fail(WorkerError(f"{reason}; it was killed: {self._child.describe_end()}"))

    async def _serve(self) -> None:
        while (message := await self._child.receive()) is not None:
            self._last_progress = asyncio.get_running_loop().time()
            if isinstance(message, Progress):
                self._on_progress(message.doing)
            elif (answer := self._answers.pop(type(message), None)) is not None and not answer.done():
                answer.set_result(message)
        await self._child.wait(timeout_seconds=5)
        self._fail(WorkerError(f"the trainer is gone: {self._child.describe_end()}"))

    def _fail(self, error: WorkerError) -> None:
        self._error = self._error or error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._error)
