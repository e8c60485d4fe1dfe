"""The weights of a run where a vLLM server of this machine can read them: by path, under Hugging Face names.

    trainer ──► shared buffer ◄── /proc/PID/fd/N ── vLLM                 all weights are published
    trainer ──► shared buffer ──► merged into the base, buffer of ours ◄── vLLM       only an adapter is

Ours stacks q, k, v and gate, up; the parts are consecutive rows, so a name, a shape and an offset describe each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from freerun.config.lora import LoraConfig
from freerun.model.checkpoint import empty_model, load_model
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import DecoderConfig
from freerun.model.lora import add_adapter, frozen_checksum, merged_state, trained_parameters
from freerun.model.tensor_names import stacked_parts
from freerun.types import Publication
from freerun.weights.buffers import NUM_BUFFERS
from freerun.weights.layout import DTYPE, WeightLayout
from freerun.weights.shared import SharedWeights

NamedPlace = tuple[str, str, tuple[int, ...], int]
"""Hugging Face name, dtype, shape, offset in bytes."""


@dataclass(frozen=True)
class ReadableWeights:
    """One version's weights, checked, and where they lie."""

    path: str
    version: int
    checksum: str
    num_bytes: int
    tensors: list[NamedPlace]


class WeightSource:
    """Buffers with all weights of a model, readable by path for as long as this process lives."""

    def __init__(self, descriptors: Sequence[int], model: Decoder) -> None:
        layout = WeightLayout(model)
        self._config = model.config
        self._descriptors = descriptors
        self._num_bytes = layout.num_bytes
        self._tensors = named_places(layout, model.config)
        self.shared = SharedWeights(descriptors, layout)

    def readable(self, version: int, checksum: str) -> ReadableWeights:
        return ReadableWeights(
            path=f"/proc/{os.getpid()}/fd/{self._descriptors[version % NUM_BUFFERS]}",
            version=version,
            checksum=checksum,
            num_bytes=self._num_bytes,
            tensors=self._tensors,
        )

    def model(self, version: int, checksum: str) -> Decoder:
        """A decoder whose parameters are the buffer itself."""
        with torch.device("meta"):
            model = Decoder(self._config)
        model.load_state_dict(self.shared.fetch(version, checksum), assign=True)
        return model

    def written(self, version: int, state: Mapping[str, Tensor]) -> ReadableWeights:
        """The same after writing `state` there; for buffers that are our own."""
        self.shared.write(version, state)
        return self.readable(version, self.shared.checksum(version))


class PublishedWeights:
    """All weights as the trainer publishes them."""

    def __init__(self, descriptors: Sequence[int], directory: Path) -> None:
        self._source = WeightSource(descriptors, empty_model(directory))

    def readable(self, published: Publication) -> ReadableWeights:
        self._source.shared.fetch(published.version, published.checksum)
        return self._source.readable(published.version, published.checksum)

    def model(self, published: Publication) -> Decoder:
        """Our own decoder with these weights."""
        return self._source.model(published.version, published.checksum)


class MergedWeights:
    """A base model with the adapter that the trainer publishes merged into it, once for each version."""

    def __init__(self, descriptors: Sequence[int], lora: LoraConfig, base: Path) -> None:
        self._model = load_model(base)
        add_adapter(self._model, lora, seed=0)  # its matrices arrive by publication
        layout = WeightLayout(self._model)
        self._adapter = SharedWeights(descriptors, layout, frozen=frozen_checksum(self._model))
        self._source = WeightSource(_own_buffer(), empty_model(base))

    def readable(self, published: Publication) -> ReadableWeights:
        adapter = self._adapter.fetch(published.version, published.checksum)
        for name, parameter in trained_parameters(self._model).items():
            parameter.data = adapter[name]
        return self._source.written(published.version, merged_state(self._model))

    def model(self, published: Publication) -> Decoder:
        """Our own decoder with the base and the adapter that was read last."""
        return self._model


def directory_weights(model: Decoder) -> ReadableWeights:
    """The weights of a model that was read from a directory, as version 0."""
    source = WeightSource(_own_buffer(), model)
    return source.written(0, {name: parameter.data for name, parameter in model.named_parameters()})


def named_places(layout: WeightLayout, config: DecoderConfig) -> list[NamedPlace]:
    """Every Hugging Face tensor as a run of rows of one of our parameters."""
    named: list[NamedPlace] = []
    for ours, parts in stacked_parts(config):
        place = layout.places[ours]
        offset, dtype = place.offset, str(DTYPE).removeprefix("torch.")
        for theirs, shape in parts:
            named.append((theirs, dtype, shape, offset))
            offset += math.prod(shape) * DTYPE.itemsize
    return named


def _own_buffer() -> tuple[int, ...]:
    # One for all versions: the server has copied what it read when it answers, and nobody else reads it.
    return (os.memfd_create("freerun-merged"),) * NUM_BUFFERS
