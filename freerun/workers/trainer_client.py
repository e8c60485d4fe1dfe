"""The trainer the controller sees: typed calls to the trainer's processes; each is answered or raises.

    command ──► every rank          rank 0 ──► answer

A trainer that dies, falls silent or makes no progress ends the run with its traceback: its weights are gone, and
`--resume` continues from the newest checkpoint. Each rank holds a share of the weights, so the loss of one is the
loss of the trainer: the others are killed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from freerun.config.recipe import RuntimeConfig
from freerun.errors import CheckpointError, WorkerError
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock
from freerun.processes.supervision import EXIT_SECONDS, Supervisor
from freerun.types import Demonstration, Doing, Group, Publication, StepResult, TrainedTrajectory
from freerun.workers import messages as m
from freerun.workers.parts import PART_BYTES, split_batch

R = TypeVar("R")


class TrainerClient:
    """All processes of one trainer; implements `protocols.Trainer`."""

    def __init__(
        self,
        ranks: Sequence[Link[m.FromTrainer]],
        *,
        config: RuntimeConfig,
        on_progress: Callable[[Doing], None],
        on_cores: Callable[[tuple[int, ...]], None] = lambda cores: None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._links = tuple(ranks)
        self._start_message: m.StartTrainer | None = None
        self._config = config
        self._on_progress = on_progress
        self._on_cores = on_cores
        self._part_bytes = part_bytes
        self._patience_seconds = config.start_seconds
        self._trained: list[TrainedTrajectory] = []
        """Results for trajectories of the current step that have arrived so far."""
        self._answers: dict[type[m.FromTrainer], asyncio.Future[m.FromTrainer]] = {}
        """Pending commands by the type of their answer; at most one per type."""
        self._last_progress: dict[type[m.FromTrainer], float] = {}
        self._supervisor = Supervisor(on_loss=lambda error: self._kill())
        self.wait_for_loss = self._supervisor.wait_for_loss
        """Never returns; raises when a process is gone, even without a pending command."""
        for link in self._links:
            self._supervisor.start(self._serve(link))
        self._supervisor.check_often(self._check)

    async def start(self, message: m.StartTrainer) -> m.TrainerReady:
        """Load model and optimizer; returns their sizes.

        Rank 0 is ready when all ranks are. The others start when rank 0 has reported its address.
        """
        self._start_message = message
        answer = self._expect(m.TrainerReady)
        self._links[0].send(message)
        ready = await self._received(answer, m.TrainerReady)
        self._patience_seconds = self._config.stall_seconds
        return ready

    async def step(self, groups: Sequence[Group]) -> StepResult:
        *parts, last = split_batch(groups, part_bytes=self._part_bytes)
        for part in parts:
            self._broadcast(m.BatchPart(groups=part))
        self._trained = []
        answer = self._send(m.TrainStep(groups=last), m.StepDone)
        result = (await self._received(answer, m.StepDone)).result
        return msgspec.structs.replace(result, trajectories=tuple(self._trained))

    async def supervise(self, demonstrations: Sequence[Demonstration], lr: float | None) -> float:
        """Run one step of SFT, or only compute the loss if `lr` is None; returns the loss before the step."""
        answer = self._send(m.Supervise(demonstrations=tuple(demonstrations), lr=lr), m.Supervised)
        return (await self._received(answer, m.Supervised)).loss

    def use_cores(self, cores: tuple[int, ...]) -> None:
        """Offer these cores, which include the trainer's own; the trainer reports when it has moved."""
        self._broadcast(m.UseCores(cores=cores))

    # The next two are not coroutines: the call itself sends the command, so it is sent before any later step.

    def publish(self) -> Awaitable[Publication]:
        return self._finish_publish(self._send(m.Publish(), m.Published))

    async def _finish_publish(self, answer: asyncio.Future[m.FromTrainer]) -> Publication:
        return (await self._received(answer, m.Published)).published

    def save(self, directory: str, *, version: int) -> Awaitable[None]:
        return self._finish_save(self._send(m.Save(directory=directory, version=version), m.Saved))

    async def _finish_save(self, answer: asyncio.Future[m.FromTrainer]) -> None:
        saved = await self._received(answer, m.Saved)
        if saved.error:
            raise CheckpointError(f"{saved.directory}: the checkpoint could not be written ({saved.error})")

    async def close(self) -> None:
        """End the processes; returns when they are gone."""
        await self._supervisor.close(self._links)

    def _send(self, message: m.ToTrainer, answer_type: type[Any]) -> asyncio.Future[m.FromTrainer]:
        """Send a command to every rank; the future's result is the answer of rank 0."""
        answer = self._expect(answer_type)
        self._broadcast(message)
        return answer

    def _broadcast(self, message: m.ToTrainer) -> None:
        for link in self._links:
            link.send(message)

    def _expect(self, answer_type: type[Any]) -> asyncio.Future[m.FromTrainer]:
        answer: asyncio.Future[m.FromTrainer] = asyncio.get_running_loop().create_future()
        assert answer_type not in self._answers, f"a second command is sent before its {answer_type.__name__}"
        self._answers[answer_type] = answer
        self._reset_clocks(answer_type)
        return answer

    async def _received(self, answer: asyncio.Future[m.FromTrainer], answer_type: type[R]) -> R:
        await self._supervisor.wait(answer)
        if not answer.done():  # an answer that has arrived counts, even if the trainer died right after it
            self._supervisor.raise_loss()
        received = answer.result()
        assert isinstance(received, answer_type)
        return received

    async def _serve(self, link: Link[m.FromTrainer]) -> None:
        """Handle one rank's messages until it is gone; ranks other than 0 send only signs of life."""
        try:
            while (message := await link.receive()) is not None:
                self._take_in(message)
        except WorkerError as error:
            raise self._killed(f"the trainer sent nonsense ({error})", link) from error
        await link.wait(EXIT_SECONDS)
        # A rank that loses another one ends too, and its end may be noticed first: name all that have ended.
        ended = [link, *(other for other in self._links if other is not link and not other.is_alive)]
        raise WorkerError(f"the trainer is gone: {'; '.join(other.describe_end() for other in ended)}")

    def _take_in(self, message: m.FromTrainer) -> None:
        if isinstance(message, m.Rendezvous):
            self._start_others(message.address)
        elif isinstance(message, m.Progress):
            self._reset_clocks(m.StepDone, m.Supervised)
            self._on_progress(message.doing)
        elif isinstance(message, m.TrainedPart):
            self._trained += message.trajectories
        elif isinstance(message, m.CoresInUse):
            self._on_cores(message.cores)
        elif isinstance(message, m.Saving):
            self._reset_clocks(m.Saved)
        elif (answer := self._answers.pop(type(message), None)) is not None and not answer.done():
            answer.set_result(message)

    def _reset_clocks(self, *answer_types: type[Any]) -> None:
        now = awake_clock().time()
        self._last_progress.update(dict.fromkeys(answer_types, now))

    def _start_others(self, address: str) -> None:
        assert self._start_message is not None
        for rank, link in enumerate(self._links[1:], start=1):
            link.send(msgspec.structs.replace(self._start_message, rank=rank, rendezvous=address))

    def _check(self) -> None:
        """Kill a trainer that is silent, or makes no progress on a command."""
        silence, patience = self._config.silence_seconds, self._patience_seconds
        has_started = m.TrainerReady not in self._answers
        for link in self._links if has_started else ():
            if link.seconds_silent > silence:
                raise self._killed(f"the trainer fell silent for {silence:.0f} s", link)
        before = awake_clock().time() - patience
        for asked in self._answers:
            if self._last_progress[asked] < before:
                # Whichever rank hangs, it is rank 0 that does not answer.
                reason = f"the trainer made no progress towards {asked.__name__} for {patience:.0f} s"
                raise self._killed(reason, *self._links)

    def _killed(self, reason: str, *culprits: Link[m.FromTrainer]) -> WorkerError:
        """Kill the given processes; returns an error that says how they ended."""
        for culprit in culprits:
            culprit.kill()
        ends = "; ".join(culprit.describe_end() for culprit in culprits)
        who = "it was" if len(culprits) == 1 else "all ranks were"
        return WorkerError(f"{reason}; {who} killed: {ends}")

    def _kill(self) -> None:
        for link in self._links:
            link.kill()
