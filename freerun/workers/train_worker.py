"""The trainer's process: executes one command after the other and answers each.

Publishing pauses the trainer for one copy of the weights, rounded to the engines' dtype; threads compute the
checksum and write checkpoints from a snapshot. With several ranks, each is such a process and gets every
command. Rank 0 answers, publishes and writes; it gathers the other ranks' shares tensor by tensor.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file

from freerun.controller.checkpoint import MODEL_DIRECTORY, OPTIMIZER_FILE
from freerun.errors import WorkerError
from freerun.model.device import resolve_device, resolve_dtype
from freerun.model.finite import find_not_finite, find_overflow
from freerun.model.new_directory import reported_growth
from freerun.model.trained import TrainedModel
from freerun.processes.parent import Parent, exit_with_traceback, run_worker
from freerun.trainer.allocator import keep_freed_memory
from freerun.trainer.ranks import Ranks, SingleRank, snapshot, whole_tensors
from freerun.trainer.reference import keep_reference, load_reference
from freerun.trainer.supervised import SupervisedTrainer
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Doing, Group, StepResult
from freerun.weights.channel import open_channel
from freerun.weights.layout import WeightLayout
from freerun.workers import messages as m
from freerun.workers.parts import split_trained
from freerun.workers.trainer_cores import ThreadRates, TrainerCores


class TrainWorker:
    """Translates messages into calls on the trainer."""

    def __init__(self, parent: Parent[m.ToTrainer], start: m.StartTrainer) -> None:
        torch.set_num_threads(parent.num_threads)
        self._parent = parent
        self._train = start.train
        self._companions = Path(start.companions_directory)
        device = resolve_device("train.device", start.train.device, index=start.num_engine_gpus + start.rank)
        self._ranks = _meet(parent, start, device) if start.train.num_ranks > 1 else SingleRank()
        self._trained = TrainedModel.load(
            Path(start.model_directory),
            start.lora,
            seed=start.seed,
            adapter=Path(start.adapter_directory) if start.adapter_directory else None,
            shares=self._ranks,
            device=device,
        )
        self._model = self._trained.decoder
        self._channel = (
            open_channel(
                start.weights,
                WeightLayout(self._model, resolve_dtype(start.weights.dtype)),
                frozen=self._trained.frozen,
            )
            if start.weights and self._ranks.rank == 0
            else None
        )
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
        self._supervised = self._make_supervised() if start.is_in_sft else None
        """None before and after SFT."""
        if start.optimizer_file:
            (self._supervised or self._trainer).load_optimizer_state(load_file(start.optimizer_file))
        self._reference_directory = start.reference_directory
        self._batch: list[Group] = []
        """Parts of the next step's batch that have arrived."""
        self._waiting: deque[m.ToTrainer] = deque()
        """Messages that arrived during a step, handled after it."""
        self._cores: TrainerCores | None = None
        """None if the cores never change: on a GPU, or without core lending."""
        if start.borrows_cores and device.type == "cpu":
            self._cores = TrainerCores(
                sorted(os.sched_getaffinity(0)),
                rates=ThreadRates(),
                poll=self._take_in_offers,
                on_change=lambda cores: self._answer(m.CoresInUse(cores=cores)),
            )
            self._cores.watch(self._model)

    def serve(self) -> None:
        trained = self._trained
        self._ranks.barrier()
        self._answer(m.TrainerReady(num_parameters=trained.num_parameters, num_trained=trained.num_trained))
        while True:
            message = self._waiting.popleft() if self._waiting else self._parent.receive(timeout_seconds=60)
            match message:
                case m.UseCores(cores=cores):
                    self._consider(cores)
                    self._move()
                case m.BatchPart(groups=groups):
                    self._batch += groups
                case m.TrainStep(groups=groups):
                    batch, self._batch = (*self._batch, *groups), []
                    self._need_reference()
                    self._answer_step(self._step(batch))
                case m.Publish():
                    self._supervised = None  # SFT is over: free its moments
                    with self._trainer.phases.phase("publishing"):
                        self._publish()
                case m.Save(directory=directory, version=version):
                    if version != self._trainer.version:
                        raise WorkerError(f"asked to save version {version}, but it is at {self._trainer.version}")
                    with self._trainer.phases.phase("saving"):
                        self._save(Path(directory))
                case m.Supervise():
                    self._answer(m.Supervised(loss=self._supervise(message)))
                case m.StartTrainer():
                    raise WorkerError("the trainer is started once")
                case None:
                    pass  # no command for a minute is not an error: rollouts may take long

    def _take_in_offers(self) -> None:
        """Within a step, handle only changes of cores; other messages wait for its end."""
        while (message := self._parent.receive(0)) is not None:
            if isinstance(message, m.UseCores):
                self._consider(message.cores)
            else:
                self._waiting.append(message)

    def _consider(self, cores: tuple[int, ...]) -> None:
        if self._cores is not None:
            self._cores.offer(cores)

    def _move(self) -> None:
        if self._cores is not None:
            self._cores.move()

    def _answer(self, message: m.FromTrainer) -> None:
        """Send a message as rank 0; other ranks stay silent."""
        if self._ranks.rank == 0:
            self._parent.send(message)

    def _answer_step(self, result: StepResult) -> None:
        """Send the results of a step; those of its trajectories go ahead, in parts."""
        for part in split_trained(result.trajectories):
            self._answer(m.TrainedPart(trajectories=part))
        self._answer(m.StepDone(result=msgspec.structs.replace(result, trajectories=())))

    def _progress(self, doing: Doing) -> None:
        self._answer(m.Progress(doing=doing))

    def _step_progress(self, doing: Doing) -> None:
        """Called before every micro-batch, and before the update, which has no blocks to move between."""
        self._move()
        self._progress(doing)

    def _publish(self) -> None:
        weights = whole_tensors(self._ranks, self._trained.state())
        if self._channel is None:
            for _ in weights:
                pass  # the rank's share has been sent
            return
        finish = self._channel.publish(self._trainer.version, weights)
        _in_background(lambda: self._parent.send(m.Published(published=finish())))

    def _step(self, groups: Sequence[Group]) -> StepResult:
        """Run one step. If gradients were not finite, check the weights too, which costs a pass over them."""
        result = self._trainer.step(groups)
        if not result.metrics.get("skipped_updates"):
            return result
        # All ranks see the same whole tensors, so they stop at the same one.
        weights = whole_tensors(self._ranks, self._trained.state())
        if not (find_not_finite(weights) or find_overflow(self._model)):
            return result
        return msgspec.structs.replace(result, metrics={**result.metrics, m.DIVERGED: 1.0})

    def _save(self, directory: Path) -> None:
        """Snapshot now, write in the background: the next step may start before the files are on disk."""
        weights = snapshot(self._ranks, self._trained.state())
        optimizer = snapshot(self._ranks, (self._supervised or self._trainer).optimizer_state())
        overflow = find_overflow(self._model)  # on every rank: each has a share of the model
        if self._ranks.rank != 0:
            return

        def write() -> None:
            error = find_not_finite([*weights.items(), *optimizer.items()]) or overflow
            if error:
                self._parent.send(m.Saved(directory=str(directory), error=error))
                return
            try:
                with reported_growth(directory, lambda: self._parent.send(m.Saving())):
                    self._trained.save(weights, directory / MODEL_DIRECTORY, companions=self._companions)
                    save_file(optimizer, directory / OPTIMIZER_FILE)
            except Exception as raised:  # noqa: BLE001 - the thread's edge: the controller says so and stops
                error = repr(raised)
            self._parent.send(m.Saved(directory=str(directory), error=error))

        _in_background(write)

    def _supervise(self, message: m.Supervise) -> float:
        self._supervised = trainer = self._supervised or self._make_supervised()
        if message.lr is None:
            return trainer.loss(message.demonstrations)
        return trainer.step(message.demonstrations, message.lr)

    def _make_supervised(self) -> SupervisedTrainer:
        return SupervisedTrainer(self._model, self._train, on_progress=self._step_progress, ranks=self._ranks)

    def _need_reference(self) -> None:
        """Before the first step, keep version 0 as the reference policy: the model as loaded, or after SFT."""
        if not self._reference_directory or self._trainer.reference is not None:
            return
        directory = Path(self._reference_directory)
        if self._trainer.version == 0:
            keep_reference(
                self._trained,
                directory,
                companions=self._companions,
                ranks=self._ranks,
                on_growth=lambda: self._progress(Doing("training", "writing the reference policy")),
            )
        self._progress(Doing("training", "reading the reference policy"))
        self._trainer.reference = load_reference(
            directory, self._ranks, device=self._model.embedding.weight.device
        )
        if self._cores is not None:
            self._cores.watch(self._trainer.reference)


def _meet(parent: Parent[m.ToTrainer], start: m.StartTrainer, device: torch.device) -> Ranks:
    """Connect the ranks: rank 0 listens and reports where; the others connect there."""
    # Imported here: a trainer of one process does not need torch.distributed.
    from freerun.trainer.fsdp import Meeting

    meeting = Meeting(rank=start.rank, num_ranks=start.train.num_ranks, address=start.rendezvous)
    if start.rank == 0:
        parent.send(m.Rendezvous(address=meeting.address))
    return meeting.join(device)


def _in_background(work: Callable[[], None]) -> None:
    """Run `work` on a thread; an exception ends the process, as it would in the main thread."""

    def run() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the edge of a thread
            exit_with_traceback()

    threading.Thread(target=run, daemon=True).start()


def serve(parent: Parent[m.ToTrainer]) -> None:
    keep_freed_memory()
    TrainWorker(parent, parent.receive_first(m.StartTrainer)).serve()


if __name__ == "__main__":
    run_worker(m.ToTrainer, serve)
