"""The weight channel of a vLLM server: published weights in memory that the server can map.

    trainer ~~► worker's channel ◄── path ── vLLM                          all weights are published
    trainer ~~► worker's channel ──► merged into the base, own memory ◄── path ── vLLM      only an adapter is

The server reads by path, under Hugging Face names. Our parameters stack q, k, v and gate, up; the parts are
consecutive rows, so a name, a shape and an offset describe each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from freerun.config.lora import LoraConfig
from freerun.model.checkpoint import empty_model, load_model
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import DecoderConfig
from freerun.model.device import resolve_dtype
from freerun.model.families import stacked_parts
from freerun.model.lora import add_adapter, frozen_checksum, merged_state, trained_parameters
from freerun.model.shares import Whole
from freerun.types import Publication, WeightRoute
from freerun.weights.buffers import NUM_BUFFERS
from freerun.weights.channel import State, WeightChannel, open_channel
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel

NamedPlace = tuple[str, str, tuple[int, ...], int]
"""(Hugging Face name, dtype, shape, offset in bytes)."""


@dataclass(frozen=True)
class ReadableWeights:
    """One version's verified weights and their location: the arguments of the plugin's `freerun_read_weights`."""

    path: str
    version: int
    checksum: str
    num_bytes: int
    tensors: list[NamedPlace]


class MergedAdapter:
    """A base model into which the trainer's published adapter is merged."""

    def __init__(self, route: WeightRoute, lora: LoraConfig, base: Path) -> None:
        self.model = load_model(base)
        add_adapter(self.model, lora, seed=0)  # its matrices arrive by publication
        self.channel = open_channel(route, WeightLayout(self.model), frozen=frozen_checksum(self.model, Whole()))

    def merge(self, published: Publication) -> Mapping[str, Tensor]:
        adapter = self.channel.fetch(published)
        for name, parameter in trained_parameters(self.model).items():
            parameter.data = adapter[name]
        return merged_state(self.model)


class ServerChannel:
    """Passes whole models on to a vLLM server; implements `channel.WeightChannel`."""

    def __init__(
        self,
        memory: WeightChannel,
        layout: WeightLayout,
        config: DecoderConfig,
        *,
        adapter: MergedAdapter | None = None,
    ) -> None:
        self._memory = memory
        """The memory that the server reads: the run's channel, or this process's own if an adapter is merged."""
        self._adapter = adapter
        self._config = config
        self._num_bytes = layout.num_bytes
        self._tensors = named_places(layout, config)

    @classmethod
    def open(cls, route: WeightRoute, directory: Path, lora: LoraConfig, base: Path) -> ServerChannel:
        """Open the channel for what arrives on the route: weights of `directory`, or an adapter of `base`."""
        model = empty_model(base if lora.is_on else directory)
        layout = WeightLayout(model, resolve_dtype(route.dtype))
        if lora.is_on:
            return cls(_own_memory(layout), layout, model.config, adapter=MergedAdapter(route, lora, base))
        return cls(open_channel(route, layout), layout, model.config)

    def publish(self, version: int, state: State) -> Callable[[], Publication]:
        return self._memory.publish(version, state)

    def has_arrived(self, published: Publication, *, timeout_seconds: float = 0.0) -> bool:
        source = self._adapter.channel if self._adapter else self._memory
        return source.has_arrived(published, timeout_seconds=timeout_seconds)

    def fetch(self, published: Publication) -> Mapping[str, Tensor]:
        return self._memory.fetch(published)

    def path(self, version: int) -> str:
        return self._memory.path(version)

    def relay(self, published: Publication) -> ReadableWeights:
        """Verify the arrived weights, merge an adapter, and return where the server finds the whole model."""
        if self._adapter:
            published = self.publish(published.version, self._adapter.merge(published))()
        else:
            self.fetch(published)
        return self.readable(published)

    def readable(self, published: Publication) -> ReadableWeights:
        path, version, checksum = self.path(published.version), published.version, published.checksum
        return ReadableWeights(path, version, checksum, self._num_bytes, self._tensors)

    def model(self, published: Publication) -> Decoder:
        """A decoder with the last relayed weights, which must be of this publication."""
        if self._adapter:
            return self._adapter.model
        with torch.device("meta"):
            model = Decoder(self._config)
        model.load_state_dict(self.fetch(published), assign=True)
        return model


def _own_memory(layout: WeightLayout) -> SharedMemoryChannel:
    # One buffer for all versions: the server has copied the weights by the time it answers.
    return SharedMemoryChannel((os.memfd_create("freerun-merged"),) * NUM_BUFFERS, layout)


def directory_weights(model: Decoder) -> ReadableWeights:
    """The weights of a model read from a directory, as version 0."""
    layout = WeightLayout(model)
    channel = ServerChannel(_own_memory(layout), layout, model.config)
    return channel.readable(channel.publish(0, model.named_parameters())())


def named_places(layout: WeightLayout, config: DecoderConfig) -> list[NamedPlace]:
    """The position of every Hugging Face tensor, which is a run of rows of one of our parameters."""
    named: list[NamedPlace] = []
    for ours, parts in stacked_parts(config):
        place = layout.places[ours]
        offset, dtype = place.offset, str(layout.dtype).removeprefix("torch.")
        for theirs, shape in parts:
            named.append((theirs, dtype, shape, offset))
            offset += math.prod(shape) * layout.dtype.itemsize
    return named
