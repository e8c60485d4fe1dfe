"""The embedded engine, in the worker's own process: weights from its channel or from a directory."""

import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from freerun.backends.backend import EngineStart, WorkerContext
from freerun.backends.native.arriving import ArrivingWeights
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine, NewWeights
from freerun.engine.pinned import PinnableEngine
from freerun.model.checkpoint import empty_model, load_model
from freerun.model.decoder import Decoder
from freerun.model.device import resolve_device, resolve_dtype
from freerun.model.lora import add_adapter, frozen_checksum
from freerun.model.shares import Whole
from freerun.types import Completion, EngineStats, Publication, Request
from freerun.weights.channel import WeightChannel, open_channel
from freerun.weights.layout import WeightLayout


class EmbeddedEngine:
    """The engine and its weight channel; implements `backend.GeneratorEngine`."""

    def __init__(self, engine: PinnableEngine, channel: WeightChannel | None, *, drains: bool) -> None:
        self._engine = engine
        self._channel = channel
        self._drains = drains
        self._arriving: ArrivingWeights | None = None
        self.submit, self.abort, self.end_session = engine.submit, engine.abort, engine.end_session
        self.pin, self.unpin = engine.pin, engine.unpin

    @property
    def must_step(self) -> bool:
        return self._engine.has_work

    def has_arrived(self, published: Publication, *, timeout_seconds: float) -> bool:
        """As in the protocol; also verifies and packs on a thread, so that `load` only swaps."""
        assert self._channel is not None
        if self._arriving is None or self._arriving.published != published:
            if not self._channel.has_arrived(published, timeout_seconds=timeout_seconds):
                return False
            # One at a time: two threads would pack into the same memory.
            if self._arriving is not None and not self._arriving.is_done(timeout_seconds=timeout_seconds):
                return False
            self._arriving = ArrivingWeights(published, functools.partial(self._prepare, published))
        return self._arriving.is_done(timeout_seconds=timeout_seconds)

    def is_ready_to_load(self) -> bool:
        return not self._drains or self._engine.drain()

    def load(self, published: Publication) -> int:
        arriving, self._arriving = self._arriving, None
        assert arriving is not None, "load follows has_arrived"
        assert arriving.published == published
        return self._engine.swap(arriving.take())

    def _prepare(self, published: Publication) -> NewWeights:
        assert self._channel is not None
        return self._engine.prepare(published.version, self._channel.fetch(published))

    def step(self) -> Sequence[tuple[Request, tuple[Completion, ...]]]:
        return self._engine.step() if self._engine.has_work else ()

    def stats(self, *, waited_seconds: float) -> EngineStats:
        return msgspec.structs.replace(self._engine.stats(), idle_seconds=waited_seconds)

    def close(self) -> None:
        pass


def make_engine(start: EngineStart, context: WorkerContext) -> EmbeddedEngine:
    """The engine of one worker; it has weights from the start only if none will be published."""
    torch.set_num_threads(context.num_threads)
    model, channel = open_model(start)
    engine = PinnableEngine(
        Engine(
            model,
            start.engine,
            text=Tokenizer.load(Path(start.model_directory)),
            max_sequence_tokens=start.max_sequence_tokens,
            seed=start.seed,
        )
    )
    if channel is None:
        engine.load(0, {name: parameter.data for name, parameter in model.named_parameters()})
    return EmbeddedEngine(engine, channel, drains=start.engine.kv_on_load == "drain")


def open_model(start: EngineStart) -> tuple[Decoder, WeightChannel | None]:
    """The engine's model on its device, and its weight channel; without a channel the model has its weights."""
    device = resolve_device("engine.device", start.engine.device, index=start.worker_index)
    dtype = resolve_dtype(start.engine.dtype)
    directory, channel = Path(start.model_directory), None
    if start.weights and start.lora.is_on:
        model = load_model(Path(start.base_directory))
        add_adapter(model, start.lora, seed=0)  # its matrices arrive by `Load`
        # The checksum of the float32 weights, before conversion, as in the trainer.
        channel = open_channel(start.weights, WeightLayout(model), frozen=frozen_checksum(model, Whole()))
    elif start.weights:
        # The weights arrive by `Load`; until then the parameters take almost no memory.
        model = empty_model(directory)
        channel = open_channel(start.weights, WeightLayout(model, resolve_dtype(start.weights.dtype)))
        model.to(dtype).to_empty(device=device)
    else:
        model = load_model(directory)
    return model.to(device, dtype), channel
