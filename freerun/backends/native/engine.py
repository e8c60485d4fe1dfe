"""The embedded engine, in the worker's own process: weights from its channel or from a directory."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from freerun.backends.backend import EngineStart, WorkerContext
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.model.checkpoint import empty_model, load_model
from freerun.model.device import resolve_device, resolve_dtype
from freerun.model.lora import add_adapter, frozen_checksum
from freerun.types import Completion, EngineStats, Publication, Request
from freerun.weights.channel import WeightChannel, open_channel
from freerun.weights.layout import WeightLayout


class EmbeddedEngine:
    """The engine and its weight channel; implements `backend.GeneratorEngine`."""

    def __init__(self, engine: PinnableEngine, channel: WeightChannel | None, *, drains: bool) -> None:
        self._engine = engine
        self._channel = channel
        self._drains = drains
        self.submit, self.abort, self.end_session = engine.submit, engine.abort, engine.end_session
        self.pin, self.unpin = engine.pin, engine.unpin

    @property
    def must_step(self) -> bool:
        return self._engine.has_work

    def has_arrived(self, published: Publication, *, timeout_seconds: float) -> bool:
        assert self._channel is not None
        return self._channel.has_arrived(published, timeout_seconds=timeout_seconds)

    def is_ready_to_load(self) -> bool:
        return not self._drains or self._engine.drain()

    def load(self, published: Publication) -> None:
        assert self._channel is not None
        begin = time.perf_counter()
        weights = self._channel.fetch(published)
        self._engine.add_load_seconds(time.perf_counter() - begin)
        self._engine.load(published.version, weights)

    def step(self) -> Sequence[tuple[Request, tuple[Completion, ...]]]:
        return self._engine.step() if self._engine.has_work else ()

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        pass


def make_engine(start: EngineStart, context: WorkerContext) -> EmbeddedEngine:
    """The engine of one worker; it has weights at once only if none will be published."""
    torch.set_num_threads(context.num_threads)
    device = resolve_device("engine.device", start.engine.device, index=start.worker_index)
    dtype = resolve_dtype(start.engine.dtype)
    directory, channel = Path(start.model_directory), None
    if start.weights and start.lora.is_on:
        model = load_model(Path(start.base_directory))
        add_adapter(model, start.lora, seed=0)  # its matrices arrive by `Load`
        # Of the float32 weights, as the trainer's checksum is: before they are converted.
        channel = open_channel(start.weights, WeightLayout(model), frozen=frozen_checksum(model))
    elif start.weights:
        # The weights arrive by `Load`; until then the parameters take almost no memory.
        model = empty_model(directory)
        channel = open_channel(start.weights, WeightLayout(model))
        model.to(dtype).to_empty(device=device)
    else:
        model = load_model(directory)
    engine = PinnableEngine(
        Engine(
            model.to(device, dtype),
            start.engine,
            text=Tokenizer.load(directory),
            max_sequence_tokens=start.max_sequence_tokens,
            seed=start.seed,
        )
    )
    if channel is None:
        engine.load(0, {name: parameter.data for name, parameter in model.named_parameters()})
    return EmbeddedEngine(engine, channel, drains=start.engine.kv_on_load == "drain")
