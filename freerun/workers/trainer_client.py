"""The trainer the controller sees: typed calls on the trainer's processes, each answered or an error.

    command ──► every rank          rank 0 ──► answer

A trainer that dies, falls silent or makes no progress ends the run with its traceback: its weights are
gone, and `--resume` continues from the newest checkpoint. Of several ranks each holds a share of the weights, so
the loss of one is the loss of the trainer: the others are killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from freerun.config.runtime import RuntimeConfig
from freerun.errors import CheckpointError, WorkerError
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock
from freerun.types import Demonstration, Group, Publication, StepResult
from freerun.workers.batch_parts import PART_BYTES, split_batch
from freerun.workers.messages import (
    BatchPart,
    CoresInUse,
    FromTrainer,
    Progress,
    Publish,
    Published,
    Rendezvous,
    Save,
    Saved,
    Saving,
    StartTrainer,
    StepDone,
    Supervise,
    Supervised,
    ToTrainer,
    TrainerReady,
    TrainStep,
    UseCores,
)

R = TypeVar("R")
WATCH_SECONDS = 1.0


class TrainerClient:
    """All processes of one trainer; implements `protocols.Trainer`."""

    def __init__(
        self,
        ranks: Sequence[Link[FromTrainer]],
        *,
        config: RuntimeConfig,
        on_progress: Callable[[str], None],
        on_cores: Callable[[tuple[int, ...]], None] = lambda cores: None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._links = tuple(ranks)
        self._start_message: StartTrainer | None = None
        self._config = config
        self._on_progress = on_progress
        self._on_cores = on_cores
        self._part_bytes = part_bytes
        self._patience_seconds = config.start_seconds
        self._answers: dict[type[FromTrainer], asyncio.Future[FromTrainer]] = {}
        """Commands under way, by the kind of their answer: there is at most one of each."""
        self._last_progress: dict[type[FromTrainer], float] = {}
        self._loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._serve(link)) for link in self._links]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def wait_for_loss(self) -> None:
        """Never returns; raises when a process is gone, whether or not anything was asked of it."""
        await asyncio.shield(self._loss)

    async def start(self, message: StartTrainer) -> TrainerReady:
        """Load model and optimizer; returns what the trainer says of their size.

        Rank 0 is ready when all are. The others are started when it has said where it waits for them.
        """
        self._start_message = message
        answer = self._expect(TrainerReady)
        self._links[0].send(message)
        ready = await self._received(answer, TrainerReady)
        self._patience_seconds = self._config.stall_seconds
        return ready

    async def step(self, groups: Sequence[Group]) -> StepResult:
        *parts, last = split_batch(groups, part_bytes=self._part_bytes)
        for part in parts:
            for link in self._links:
                link.send(BatchPart(groups=part))
        answer = self._send(TrainStep(groups=last), StepDone)
        return (await self._received(answer, StepDone)).result

    async def supervise(self, demonstrations: Sequence[Demonstration], lr: float) -> float:
        """One warm-start update; returns the loss before it."""
        answer = self._send(Supervise(demonstrations=tuple(demonstrations), lr=lr), Supervised)
        return (await self._received(answer, Supervised)).loss

    def use_cores(self, cores: tuple[int, ...]) -> None:
        """Offer these cores, which include its own; it says when it has moved."""
        for link in self._links:
            link.send(UseCores(cores=cores))

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
        """End the processes; returns when they are gone."""
        for task in self._tasks:
            task.cancel()
        self._kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.wait(timeout_seconds=10) for link in self._links))
        if self._loss.done():
            self._loss.exception()  # seen, or asyncio complains about it at exit

    def _send(self, message: ToTrainer, answer_type: type[Any]) -> asyncio.Future[FromTrainer]:
        """Send a command to every rank; the answer of rank 0 is the future's result."""
        answer = self._expect(answer_type)
        for link in self._links:
            link.send(message)
        return answer

    def _expect(self, answer_type: type[Any]) -> asyncio.Future[FromTrainer]:
        answer: asyncio.Future[FromTrainer] = asyncio.get_running_loop().create_future()
        assert answer_type not in self._answers, f"a second command is sent before its {answer_type.__name__}"
        self._answers[answer_type] = answer
        self._reset_clocks(answer_type)
        return answer

    async def _received(self, answer: asyncio.Future[FromTrainer], answer_type: type[R]) -> R:
        either: set[asyncio.Future[Any]] = {answer, self._loss}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._loss.result()
        received = answer.result()
        assert isinstance(received, answer_type)
        return received

    async def _serve(self, link: Link[FromTrainer]) -> None:
        """Take in one rank's messages until it is gone; only rank 0 says anything but that it is alive."""
        try:
            while (message := await link.receive()) is not None:
                self._take_in(message)
        except WorkerError as error:
            self._give_up(f"the trainer sent nonsense ({error})", link)
            return
        except Exception as error:  # noqa: BLE001 - ours: without this task the run would wait for ever
            self._lose(error)
            return
        await link.wait(timeout_seconds=5)
        # A rank that lost another one ends too, and may be heard of first: name all that have ended.
        ended = [link, *(other for other in self._links if other is not link and not other.is_alive)]
        self._lose(WorkerError(f"the trainer is gone: {'; '.join(other.describe_end() for other in ended)}"))

    def _take_in(self, message: FromTrainer) -> None:
        if isinstance(message, Rendezvous):
            self._start_others(message.address)
        elif isinstance(message, Progress):
            self._reset_clocks(StepDone, Supervised)
            self._on_progress(message.doing)
        elif isinstance(message, CoresInUse):
            self._on_cores(message.cores)
        elif isinstance(message, Saving):
            self._reset_clocks(Saved)
        elif (answer := self._answers.pop(type(message), None)) is not None and not answer.done():
            answer.set_result(message)

    def _reset_clocks(self, *answer_types: type[Any]) -> None:
        now = awake_clock().time()
        self._last_progress.update(dict.fromkeys(answer_types, now))

    def _start_others(self, address: str) -> None:
        assert self._start_message is not None
        for rank, link in enumerate(self._links[1:], start=1):
            link.send(msgspec.structs.replace(self._start_message, rank=rank, rendezvous=address))

    async def _watch(self) -> None:
        """Kill a trainer that is silent, or makes no progress on what was asked of it."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            has_started = TrainerReady not in self._answers
            for link in self._links if has_started else ():
                if link.seconds_silent > self._config.silence_seconds:
                    self._give_up(f"the trainer fell silent for {self._config.silence_seconds:.0f} s", link)
            before = awake_clock().time() - self._patience_seconds
            for asked in [kind for kind in self._answers if self._last_progress[kind] < before]:
                seconds = self._patience_seconds
                reason = f"the trainer made no progress towards {asked.__name__} for {seconds:.0f} s"
                # Whichever rank hangs, it is rank 0 that does not answer.
                self._give_up(reason, *self._links)

    def _give_up(self, reason: str, *culprits: Link[FromTrainer]) -> None:
        for culprit in culprits:
            culprit.kill()
        ends = "; ".join(culprit.describe_end() for culprit in culprits)
        who = "it was" if len(culprits) == 1 else "all ranks were"
        self._lose(WorkerError(f"{reason}; {who} killed: {ends}"))

    def _lose(self, error: Exception) -> None:
        if not self._loss.done():
            self._loss.set_exception(error)
        self._kill()

    def _kill(self) -> None:
        for link in self._links:
            link.kill()
