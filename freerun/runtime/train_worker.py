"""The trainer's process: one command after the other, each answered; only saving goes on in the background.

Publishing holds the trainer for one copy of the weights into shared memory; their checksum, and writing a
checkpoint from a snapshot, are left to threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from freerun.errors import WorkerError
from freerun.model.device import resolve_device
from freerun.model.trained import TrainedModel
from freerun.processes.parent import Parent, exit_with_traceback, run_worker
from freerun.runtime.checkpoint import MODEL_DIRECTORY, OPTIMIZER_FILE
from freerun.runtime.messages import (
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
from freerun.train.reference import keep_reference, load_reference
from freerun.train.supervised import SupervisedTrainer
from freerun.train.trainer import PolicyTrainer
from freerun.types import Publication
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedWeights


class TrainWorker:
    """Translates messages into calls on the trainer."""

    def __init__(self, parent: Parent[ToTrainer], start: StartTrainer) -> None:
        torch.set_num_threads(parent.num_threads)
        self._parent = parent
        self._train = start.train
        self._companions = Path(start.companions_directory)
        adapter = Path(start.adapter_directory) if start.adapter_directory else None
        self._trained = TrainedModel.load(
            Path(start.model_directory), start.lora, seed=start.seed, adapter=adapter
        )
        self._device = resolve_device("train.device", start.train.device, index=start.local_index)
        self._model = self._trained.decoder.to(self._device)
        self._shared = SharedWeights(parent.weight_buffers, WeightLayout(self._model), frozen=self._trained.frozen)
        self._trainer = PolicyTrainer(
            self._model,
            start.train,
            start.objective,
            temperature=start.temperature,
            max_completion_tokens=start.max_completion_tokens,
            is_truncated=start.is_truncated,
            version=start.version,
            on_progress=self._progress,
        )
        if start.optimizer_file:
            self._trainer.load_optimizer_state(load_file(start.optimizer_file))
        self._reference_directory = start.reference_directory
        self._supervised: SupervisedTrainer | None = None
        self._cores = os.sched_getaffinity(0)

    def serve(self) -> None:
        trained = self._trained
        self._parent.send(TrainerReady(num_parameters=trained.num_parameters, num_trained=trained.num_trained))
        while True:
            message = self._parent.receive(timeout_seconds=60)
            match message:
                case TrainStep(groups=groups):
                    self._end_warm_start()
                    self._need_reference()
                    self._parent.send(StepDone(result=self._trainer.step(groups)))
                case Publish():
                    self._publish()
                case Save(directory=directory, version=version):
                    if version != self._trainer.version:
                        raise WorkerError(f"asked to save version {version}, but it is at {self._trainer.version}")
                    self._save(Path(directory))
                case Supervise():
                    self._parent.send(Supervised(loss=self._supervise(message)))
                case StartTrainer():
                    raise WorkerError("the trainer is started once")
                case None:
                    pass  # nothing to do for a minute is not an error: rollouts may be long

    def _progress(self, doing: str) -> None:
        self._parent.send(Progress(doing=doing))

    def _publish(self) -> None:
        version = self._trainer.version
        self._shared.write(version, self._trained.state())

        def confirm() -> None:
            published = Publication(version=version, checksum=self._shared.checksum(version))
            self._parent.send(Published(published=published))

        _in_background(confirm)

    def _save(self, directory: Path) -> None:
        """Snapshot now, write in the background: the next step may start before the files are on disk."""
        weights = _snapshot(self._trained.state())
        optimizer = _snapshot(self._trainer.optimizer_state())

        def write() -> None:
            error = ""
            try:
                self._trained.save(weights, directory / MODEL_DIRECTORY, companions=self._companions)
                save_file(optimizer, directory / OPTIMIZER_FILE)
            except Exception as problem:  # the thread's edge: the controller says so and stops
                error = repr(problem)
            self._parent.send(Saved(directory=str(directory), error=error))

        _in_background(write)

    def _supervise(self, message: Supervise) -> float:
        if self._supervised is None:
            # Nothing generates yet, so every core of the machine is the trainer's for the warm start.
            os.sched_setaffinity(0, range(psutil.cpu_count() or 1))
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            self._supervised = SupervisedTrainer(self._model, self._train, on_progress=self._progress)
        return self._supervised.step(message.demonstrations, message.lr)

    def _end_warm_start(self) -> None:
        if self._supervised is not None:
            self._supervised = None
            os.sched_setaffinity(0, self._cores)
            torch.set_num_threads(self._parent.num_threads)

    def _need_reference(self) -> None:
        """Before the first step: version 0, whether it is what was loaded or what the warm start made of it."""
        if not self._reference_directory or self._trainer.reference is not None:
            return
        directory = Path(self._reference_directory)
        if self._trainer.version == 0:
            keep_reference(self._trained, directory, companions=self._companions)
        self._trainer.reference = load_reference(directory).to(self._device)


def _snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the CPU's memory, wherever the tensors are."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def _in_background(work: Callable[[], None]) -> None:
    """Run beside the trainer; an exception ends the process, as it would in the main thread."""

    def run() -> None:
        try:
            work()
        except BaseException:
            exit_with_traceback()

    threading.Thread(target=run, daemon=True).start()


def serve(parent: Parent[ToTrainer]) -> None:
    start = parent.receive(timeout_seconds=60)
    if not isinstance(start, StartTrainer):
        raise WorkerError(f"the trainer waits 60 s for StartTrainer, got {type(start).__name__}")
    TrainWorker(parent, start).serve()


if __name__ == "__main__":
    run_worker(ToTrainer, serve)
