"""Hugging Face model directories in and out: config.json, safetensors (single and sharded), tokenizer files.

Our decoder keeps q, k, v and gate, up as one matrix each; the directory keeps them separate. Everything that is
not a weight (config.json, tokenizer, chat template) is copied from the loaded directory: a saved model loads in
`transformers` unchanged.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from freerun.model.adapter import merge_adapter
from freerun.model.adapter_directory import base_of, is_adapter, model_config
from freerun.model.companions import copy_companions
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import DecoderConfig, read_config
from freerun.model.families import TensorPart, stacked_parts
from freerun.model.finite import finite
from freerun.model.shares import Shares, Whole
from freerun.model.weight_files import INDEX_FILE, WEIGHTS_FILE, check_weights

MAX_SHARD_BYTES = 5_000_000_000


def to_hugging_face(state: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """Our parameters under Hugging Face names, stacked ones split."""
    tensors: dict[str, Tensor] = {}
    for ours, parts in stacked_parts(config):
        pieces = state[ours].split([shape[0] for _, shape in parts])
        for (theirs, _), piece in zip(parts, pieces, strict=True):
            tensors[theirs] = piece.contiguous()
    return tensors


def empty_model(directory: Path) -> Decoder:
    """A decoder of the directory's shape, with parameters that allocate no memory."""
    with torch.device("meta"):
        return Decoder(model_config(directory))


def load_model(directory: Path) -> Decoder:
    """A decoder in float32 with the directory's weights; an adapter's are merged into those of its base."""
    if is_adapter(directory):
        model = load_model(base_of(directory))
        merge_adapter(model, directory, Whole())
        return model
    # Opened first: weights that do not fit are refused before a layer is created.
    with open_weights(directory, read_config(directory)) as weights:
        model = empty_model(directory)
        state = {name: weights.rows(name, slice(0, p.shape[0])) for name, p in model.named_parameters()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


@torch.no_grad()
def load_shares(model: Decoder, directory: Path, shares: Shares, *, device: torch.device) -> None:
    """Shard an empty model and read this process's rows of it from the directory onto the device.

    Parameters that are not empty (those of an adapter) are the same in every process and keep their values.
    """
    adapter = {name: p.detach() for name, p in model.named_parameters() if not p.is_meta}
    shares.shard(model)
    model.to_empty(device=device)
    base = base_of(directory) if is_adapter(directory) else directory
    with open_weights(base, model.config) as weights:
        for name, parameter in model.named_parameters():
            own, rows = shares.own(parameter)
            own.copy_(adapter[name][rows] if name in adapter else weights.rows(name, rows))
    if is_adapter(directory):
        merge_adapter(model, directory, shares)


class TensorReader:
    """Reads the weights of a model directory by our names, in float32; only the requested rows are read."""

    def __init__(self, directory: Path, parts: Mapping[str, list[TensorPart]], slices: Mapping[str, Any]) -> None:
        self._directory = directory
        self._parts = parts
        self._slices = slices
        """By Hugging Face name."""

    def rows(self, name: str, rows: slice) -> Tensor:
        """These rows of our parameter, from the tensors that it stacks; raises on NaN and infinity."""
        pieces: list[Tensor] = []
        begin = 0
        for theirs, shape in self._parts[name]:
            first, last = max(rows.start - begin, 0), min(rows.stop - begin, shape[0])
            if first < last:
                pieces.append(finite(self._slices[theirs][first:last], theirs, self._directory))
            begin += shape[0]
        if not pieces:
            return torch.empty(0, *self._parts[name][0][1][1:])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@contextmanager
def open_weights(directory: Path, config: DecoderConfig) -> Iterator[TensorReader]:
    """A reader of the directory's weights, whose headers fit the config; tensors it has returned remain valid."""
    headers = check_weights(directory, config)
    with ExitStack() as stack:
        files = {
            file: stack.enter_context(safe_open(file, framework="pt"))
            for file in {header.file for header in headers.values()}
        }
        slices = {name: files[header.file].get_slice(name) for name, header in headers.items()}
        yield TensorReader(directory, dict(stacked_parts(config)), slices)


def save_weights(
    state: Mapping[str, Tensor],
    config: DecoderConfig,
    directory: Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the weights as Hugging Face safetensors, sharded when they exceed `max_shard_bytes`."""
    tensors = to_hugging_face(state, config)
    shards: list[dict[str, Tensor]] = [{}]
    shard_bytes = 0
    for name, tensor in tensors.items():
        if shards[-1] and shard_bytes + tensor.nbytes > max_shard_bytes:
            shards.append({})
            shard_bytes = 0
        shards[-1][name] = tensor
        shard_bytes += tensor.nbytes
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], directory / WEIGHTS_FILE, metadata=metadata)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file_name, metadata=metadata)
        weight_map.update(dict.fromkeys(shard, file_name))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2))


def save_model(model: Decoder, directory: Path, *, source: Path) -> None:
    """Write a complete model directory: the model's weights, everything else from `source`."""
    directory.mkdir(parents=True, exist_ok=True)
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_weights(state, model.config, directory)
    copy_companions(source, directory)
