"""Hugging Face model directories in and out: config.json, safetensors (single and sharded), tokenizer files.

Our decoder keeps q, k, v and gate, up as one matrix each; the directory keeps them separate. Everything that is
not a weight (config.json, tokenizer, chat template) is copied from the loaded directory: a saved model loads in
`transformers` unchanged.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from freerun.model.adapter import merge_adapter
from freerun.model.adapter_directory import base_of, is_adapter
from freerun.model.companions import copy_companions
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import DecoderConfig, read_config
from freerun.model.families import stacked_parts
from freerun.model.finite import finite
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
        return Decoder(read_config(directory))


def load_model(directory: Path) -> Decoder:
    """A decoder in float32 with the directory's weights; an adapter's are merged into those of its base."""
    if is_adapter(directory):
        model = load_model(base_of(directory))
        merge_adapter(model, directory)
        return model
    config = read_config(directory)
    headers = check_weights(directory, config)
    model = empty_model(directory)
    state: dict[str, Tensor] = {}
    with ExitStack() as stack:
        files = {h.file: stack.enter_context(safe_open(h.file, framework="pt")) for h in headers.values()}
        for ours, parts in stacked_parts(config):
            pieces = [finite(files[headers[name].file].get_tensor(name), name, directory) for name, _ in parts]
            state[ours] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


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
    """A complete model directory: the model's weights, everything else from `source`."""
    directory.mkdir(parents=True, exist_ok=True)
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_weights(state, model.config, directory)
    copy_companions(source, directory)
