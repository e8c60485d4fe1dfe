"""Hugging Face model directories in and out: config.json, safetensors (single and sharded), tokenizer files.

Our decoder keeps q, k, v and gate, up as one matrix each; the directory keeps them apart. Everything
that is not a weight (config.json, tokenizer, chat template) is copied from the directory that was loaded,
so that a saved model loads in `transformers` unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from freerun.errors import ModelError
from freerun.model.adapter import merge_adapter
from freerun.model.adapter_directory import base_of, is_adapter
from freerun.model.companions import copy_companions
from freerun.model.config_file import read_config_file, rope_of, rope_type
from freerun.model.decoder import Decoder, DecoderConfig, RopeScaling
from freerun.model.tensor_names import stacked_parts

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000


def read_config(directory: Path) -> DecoderConfig:
    """The decoder's shape from config.json; refuses what the decoder cannot compute, by name."""
    raw = read_config_file(directory)
    rope = rope_of(raw)
    num_heads = raw["num_attention_heads"]
    return DecoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_size=raw.get("head_dim") or raw["hidden_size"] // num_heads,
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        max_positions=raw["max_position_embeddings"],
        has_qkv_bias=raw["model_type"] == "qwen2",
        has_qk_norm=raw["model_type"] == "qwen3",
        is_head_tied=bool(raw.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(rope),
    )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    if rope_type(rope) == "default":
        return None
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_positions=int(rope["original_max_position_embeddings"]),
    )


def to_hugging_face(state: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """Our parameters under Hugging Face names, stacked ones split."""
    tensors: dict[str, Tensor] = {}
    for ours, parts in stacked_parts(config):
        if len(parts) == 1:
            tensors[parts[0][0]] = state[ours].contiguous()
            continue
        for (theirs, _), piece in zip(parts, state[ours].split([n for _, n in parts]), strict=True):
            tensors[theirs] = piece.contiguous()
    return tensors


def empty_model(directory: Path) -> Decoder:
    """A decoder of the directory's shape, whose parameters hold no memory."""
    with torch.device("meta"):
        return Decoder(read_config(directory))


def load_model(directory: Path) -> Decoder:
    """A decoder in float32 with the directory's weights; an adapter's are merged into those of its base."""
    if is_adapter(directory):
        model = load_model(base_of(directory))
        merge_adapter(model, directory)
        return model
    model = empty_model(directory)
    config = model.config
    tensors = _read_tensors(directory)
    state: dict[str, Tensor] = {}
    for ours, parts in stacked_parts(config):
        missing = [theirs for theirs, _ in parts if theirs not in tensors]
        if missing:
            raise ModelError(f'{directory}: tensor "{missing[0]}" is missing from the weights')
        pieces = [tensors[theirs].to(torch.float32) for theirs, _ in parts]
        state[ours] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        expected = model.get_parameter(ours).shape
        if state[ours].shape != expected:
            raise ModelError(
                f'{directory}: tensor "{parts[0][0]}" has shape {tuple(state[ours].shape)}, '
                f"config.json asks for {tuple(expected)}"
            )
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    index = directory / INDEX_FILE
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif (directory / WEIGHTS_FILE).is_file():
        names = [WEIGHTS_FILE]
    else:
        raise ModelError(f'model directory "{directory}" has neither {WEIGHTS_FILE} nor {INDEX_FILE}')
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            with safe_open(directory / name, framework="pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (SafetensorError, FileNotFoundError) as error:
            raise ModelError(f"{directory / name}: cannot be read ({error}); fetch the model again") from None
    return tensors


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
