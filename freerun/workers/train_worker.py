"""The trainer's process: one command after the other, each answered; only saving goes on in the background.

Publishing holds the trainer for one copy of the weights into shared memory; their checksum, and writing a
checkpoint from a snapshot, are left to threads.

Of several ranks each is such a process and gets every command. Rank 0 answers, publishes and writes; what it needs
of the others' shares is gathered tensor by tensor.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from safetensors.torch import load_file, save_file

from freerun.controller.checkpoint import MODEL_DIRECTORY, OPTIMIZER_FILE
from freerun.errors import WorkerError
from freerun.model.device import resolve_device
from freerun.model.directory_growth import reported_growth
from freerun.model.trained import TrainedModel
from freerun.processes.parent import Parent, exit_with_traceback, run_worker
from freerun.trainer.allocator import keep_freed_memory
from freerun.trainer.divergence import find_not_finite, find_overflow
from freerun.trainer.ranks import Ranks, SingleRank, snapshot, whole_tensors
from freerun.trainer.reference import keep_reference, load_reference
from freerun.trainer.supervised import SupervisedTrainer
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Group, Publication, StepResult
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedWeights
from freerun.workers.messages import (
    DIVERGED,
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
from freerun.workers.trainer_cores import ThreadRates, TrainerCores

if TYPE_CHECKING:
    from freerun.trainer.fsdp import Meeting


class TrainWorker:
    """Translates messages into calls on the trainer."""

    def __init__(self, parent: Parent[ToTrainer], start: StartTrainer) -> None:
        torch.set_num_threads(parent.num_threads)
        self._parent = parent
        self._train = start.train
        self._companions = Path(start.companions_directory)
        # Before the model is read, so that the other ranks can begin.
        meeting = _meet(parent, start) if start.train.num_ranks > 1 else None
        adapter = Path(start.adapter_directory) if start.adapter_directory else None
        self._trained = TrainedModel.load(
            Path(start.model_directory), start.lora, seed=start.seed, adapter=adapter
        )
        device = resolve_device("train.device", start.train.device, index=start.num_engine_gpus + start.rank)
        self._model = self._trained.decoder.to(device)
        self._ranks: Ranks = SingleRank() if meeting is None else meeting.join(device)
        self._shared = (
            SharedWeights(parent.weight_buffers, WeightLayout(self._model), frozen=self._trained.frozen)
            if self._ranks.rank == 0
            else None
        )
        self._ranks.shard(self._model)
        self._trainer = PolicyTrainer(
            self._model,
            start.train,
            start.objective,
            temperature=start.temperature,
            max_completion_tokens=start.max_completion_tokens,
            is_truncated=start.is_truncated,
            version=start.version,
            on_progress=self._step_progress,
            ranks=self._ranks,
        )
        if start.optimizer_file:
            self._trainer.load_optimizer_state(load_file(start.optimizer_file))
        self._reference_directory = start.reference_directory
        self._supervised: SupervisedTrainer | None = None
        self._batch: list[Group] = []
        """What has arrived of the next step."""
        self._waiting: deque[ToTrainer] = deque()
        """Messages that arrived during a step, to be served after it."""
        self._cores: TrainerCores | None = None
        """None where it keeps the cores that it has: a GPU computes, or nobody lends."""
        if start.borrows_cores and device.type == "cpu":
            self._cores = TrainerCores(
                sorted(os.sched_getaffinity(0)),
                rates=ThreadRates(),
                poll=self._take_in_offers,
                on_change=lambda cores: self._answer(CoresInUse(cores=cores)),
            )
            self._cores.watch(self._model)

    def serve(self) -> None:
        trained = self._trained
        self._ranks.barrier()
        self._answer(TrainerReady(num_parameters=trained.num_parameters, num_trained=trained.num_trained))
        while True:
            message = self._waiting.popleft() if self._waiting else self._parent.receive(timeout_seconds=60)
            match message:
                case UseCores(cores=cores):
                    self._consider(cores)
                    self._move()
                case BatchPart(groups=groups):
                    self._batch += groups
                case TrainStep(groups=groups):
                    batch, self._batch = (*self._batch, *groups), []
                    self._supervised = None  # the warm start is over
                    self._need_reference()
                    self._answer(StepDone(result=self._step(batch)))
                case Publish():
                    self._publish()
                case Save(directory=directory, version=version):
                    if version != self._trainer.version:
                        raise WorkerError(f"asked to save version {version}, but it is at {self._trainer.version}")
                    self._save(Path(directory))
                case Supervise():
                    self._answer(Supervised(loss=self._supervise(message)))
                case StartTrainer():
                    raise WorkerError("the trainer is started once")
                case None:
                    pass  # nothing to do for a minute is not an error: rollouts may be long

    def _take_in_offers(self) -> None:
        """In the middle of a step: cores may come and go, everything else waits for its end."""
        while (message := self._parent.receive(0)) is not None:
            if isinstance(message, UseCores):
                self._consider(message.cores)
            else:
                self._waiting.append(message)

    def _consider(self, cores: tuple[int, ...]) -> None:
        if self._cores is not None:
            self._cores.offer(cores)

    def _move(self) -> None:
        if self._cores is not None:
            self._cores.move()

    def _answer(self, message: FromTrainer) -> None:
        """Rank 0 speaks for all."""
        if self._ranks.rank == 0:
            self._parent.send(message)

    def _progress(self, doing: str) -> None:
        self._answer(Progress(doing=doing))

    def _step_progress(self, doing: str) -> None:
        """After every micro-batch; the update that follows the last one has no blocks to move between."""
        self._move()
        self._progress(doing)

    def _publish(self) -> None:
        version, shared = self._trainer.version, self._shared
        weights = whole_tensors(self._ranks, self._trained.state())
        if shared is None:
            for _ in weights:
                pass  # its share has been sent
            return
        shared.write(version, weights)

        def confirm() -> None:
            published = Publication(version=version, checksum=shared.checksum(version))
            self._parent.send(Published(published=published))

        _in_background(confirm)

    def _step(self, groups: Sequence[Group]) -> StepResult:
        """One step; if gradients were not finite, look whether the weights are the cause, which costs a pass."""
        result = self._trainer.step(groups)
        if not result.metrics.get("skipped_updates"):
            return result
        # The ranks see the same whole tensors, so all of them stop at the same one.
        weights = whole_tensors(self._ranks, self._trained.state())
        if not (find_not_finite(weights) or find_overflow(self._model)):
            return result
        return msgspec.structs.replace(result, metrics={**result.metrics, DIVERGED: 1.0})

    def _save(self, directory: Path) -> None:
        """Snapshot now, write in the background: the next step may start before the files are on disk."""
        weights = snapshot(self._ranks, self._trained.state())
        optimizer = snapshot(self._ranks, self._trainer.optimizer_state())
        overflow = find_overflow(self._model)  # by all ranks: each has a share of the model
        if self._ranks.rank != 0:
            return

        def write() -> None:
            error = find_not_finite([*weights.items(), *optimizer.items()]) or overflow
            if error:
                self._parent.send(Saved(directory=str(directory), error=error))
                return
            try:
                with reported_growth(directory, lambda: self._parent.send(Saving())):
                    self._trained.save(weights, directory / MODEL_DIRECTORY, companions=self._companions)
                    save_file(optimizer, directory / OPTIMIZER_FILE)
            except Exception as problem:  # noqa: BLE001 - the thread's edge: the controller says so and stops
                error = repr(problem)
            self._parent.send(Saved(directory=str(directory), error=error))

        _in_background(write)

    def _supervise(self, message: Supervise) -> float:
        if self._supervised is None:
            self._supervised = SupervisedTrainer(
                self._model, self._train, on_progress=self._step_progress, ranks=self._ranks
            )
        return self._supervised.step(message.demonstrations, message.lr)

    def _need_reference(self) -> None:
        """Before the first step: version 0, whether it is what was loaded or what the warm start made of it."""
        if not self._reference_directory or self._trainer.reference is not None:
            return
        directory = Path(self._reference_directory)
        if self._trainer.version == 0:
            keep_reference(
                self._trained,
                directory,
                companions=self._companions,
                ranks=self._ranks,
                on_growth=lambda: self._progress("writing the reference policy"),
            )
        self._progress("reading the reference policy")
        self._trainer.reference = load_reference(
            directory, self._ranks, device=self._model.embedding.weight.device
        )
        if self._cores is not None:
            self._cores.watch(self._trainer.reference)


def _meet(parent: Parent[ToTrainer], start: StartTrainer) -> Meeting:
    """Rank 0 listens for the others and says where; they were told."""
    # Here, because a trainer of one process does without torch.distributed.
    from freerun.trainer.fsdp import Meeting

    meeting = Meeting(rank=start.rank, num_ranks=start.train.num_ranks, address=start.rendezvous)
    if start.rank == 0:
        parent.send(Rendezvous(address=meeting.address))
    return meeting


def _in_background(work: Callable[[], None]) -> None:
    """Run beside the trainer; an exception ends the process, as it would in the main thread."""

    def run() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the edge of a thread
            exit_with_traceback()

    threading.Thread(target=run, daemon=True).start()


def serve(parent: Parent[ToTrainer]) -> None:
    keep_freed_memory()
    TrainWorker(parent, parent.receive_first(StartTrainer)).serve()


if __name__ == "__main__":
    run_worker(ToTrainer, serve)
