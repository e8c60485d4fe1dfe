"""A rollout worker: a process with one engine, serving requests, loads and pins between decode steps.

    loop:  take in every message that has arrived ─► one engine step ─► send what finished

While there is work the loop never waits for anything; without work it waits for the next message.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.errors import RequestError, WorkerError
from freerun.model.checkpoint import empty_model, load_model
from freerun.model.device import resolve_device, resolve_dtype
from freerun.model.lora import add_adapter, frozen_checksum
from freerun.processes.parent import Parent, run_worker
from freerun.types import Publication, Request
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedWeights
from freerun.workers.messages import (
    Abort,
    EngineReady,
    Finished,
    Generate,
    Load,
    Loaded,
    Pin,
    Refused,
    Report,
    StartEngine,
    ToRollout,
    Unpin,
)

REPORT_SECONDS = 0.5


class RolloutWorker:
    """Translates messages into calls on the engine."""

    def __init__(self, parent: Parent[ToRollout], start: StartEngine) -> None:
        torch.set_num_threads(parent.num_threads)
        self._parent = parent
        device = resolve_device("engine.device", start.engine.device, index=start.worker_index)
        dtype = resolve_dtype(start.engine.dtype)
        directory, buffers = Path(start.model_directory), parent.weight_buffers
        self._shared: SharedWeights | None = None
        if buffers and start.lora.is_on:
            model = load_model(Path(start.base_directory))
            add_adapter(model, start.lora, seed=0)  # its matrices arrive by `Load`
            self._shared = SharedWeights(buffers, WeightLayout(model), frozen=frozen_checksum(model))
        elif buffers:
            # The weights arrive by `Load`; until then the parameters hold no memory worth the name.
            model = empty_model(directory)
            self._shared = SharedWeights(buffers, WeightLayout(model))
            model.to(dtype).to_empty(device=device)
        else:
            model = load_model(directory)
        engine = Engine(
            # After the checksum of what an adapter stands on: that is of the float32 weights, as the trainer's is.
            model.to(device, dtype),
            start.engine,
            text=Tokenizer.load(directory),
            max_sequence_tokens=start.max_sequence_tokens,
            seed=start.seed,
        )
        self._engine = PinnableEngine(engine)
        self._drains = start.engine.kv_on_load == "drain"
        self._deferred: Publication | None = None
        """A load that waits for what has begun to finish."""
        if not buffers:
            self._engine.load(0, {name: parameter.data for name, parameter in model.named_parameters()})
        self._next_report = 0.0

    def serve(self) -> None:
        self._parent.send(EngineReady())
        while True:
            self._take_in_messages()
            if self._deferred is not None:
                self._load(self._deferred)
            if self._engine.has_work:
                for request, completions in self._engine.step():
                    self._parent.send(Finished(request_id=request.request_id, completions=completions))
            self._report()

    def _take_in_messages(self) -> None:
        is_busy = self._engine.has_work or self._deferred is not None
        patience = 0.0 if is_busy else REPORT_SECONDS
        while (message := self._parent.receive(patience)) is not None:
            patience = 0.0
            match message:
                case Generate(requests=requests):
                    for request in requests:
                        self._submit(request)
                case Load(published=published):
                    self._load(published)
                case Pin(version=version):
                    self._engine.pin(version)
                case Unpin():
                    self._engine.unpin()
                case Abort(request_ids=request_ids):
                    for request_id in request_ids:
                        self._engine.abort(request_id)
                case StartEngine():
                    raise WorkerError("a rollout worker is started once")

    def _submit(self, request: Request) -> None:
        try:
            self._engine.submit(request)
        except RequestError as error:
            self._parent.send(Refused(request_id=request.request_id, reason=str(error)))

    def _load(self, published: Publication) -> None:
        assert self._shared is not None
        if self._drains and not self._engine.drain():
            self._deferred = published
            return
        self._deferred = None
        begin = time.perf_counter()
        weights = self._shared.fetch(published.version, published.checksum)
        self._engine.add_load_seconds(time.perf_counter() - begin)
        self._engine.load(published.version, weights)
        self._parent.send(Loaded(published=published))
        self._next_report = 0.0

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + REPORT_SECONDS
            self._parent.send(Report(stats=self._engine.stats()))


def serve(parent: Parent[ToRollout]) -> None:
    RolloutWorker(parent, parent.receive_first(StartEngine)).serve()


if __name__ == "__main__":
    run_worker(ToRollout, serve)
