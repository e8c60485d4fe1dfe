"""Adapters in and out, in the format of PEFT: adapter_config.json and adapter_model.safetensors.

Our adapter directories also hold the model's tokenizer, so they can be read like a model directory:
`checkpoint.load_model` merges an adapter into its base. `peft` and `transformers` read them too.

The adapter stores a checksum of the base it was trained on: added to other weights it would silently be noise.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from freerun.config.lora import LoraConfig
from freerun.errors import ModelError
from freerun.model.adapter_directory import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    PEFT_PREFIX,
    check_adapter,
    read_adapter_config,
)
from freerun.model.decoder import Decoder
from freerun.model.families import projections_of
from freerun.model.finite import finite
from freerun.model.lora import LoraLinear, weights_checksum
from freerun.model.shares import Shares
from freerun.model.weight_files import file_headers

BASE_CHECKSUM = "base_checksum"


def save_adapter(
    state: Mapping[str, Tensor],
    model: Decoder,
    directory: Path,
    *,
    config: LoraConfig,
    base: Path,
    base_checksum: str,
) -> None:
    """Write the adapter whose stacked matrices are in `state`; `model` only tells how they are stacked."""
    tensors: dict[str, Tensor] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLinear):
            for projection, A, B in layer.matrices(state[f"{name}.lora_A"], state[f"{name}.lora_B"]):
                tensors[f"{PEFT_PREFIX}{projection.name}.lora_A.weight"] = A.contiguous()
                tensors[f"{PEFT_PREFIX}{projection.name}.lora_B.weight"] = B.contiguous()
    save_file(tensors, directory / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt", BASE_CHECKSUM: base_checksum})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.resolve()),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": list(config.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (directory / ADAPTER_CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n")


@torch.no_grad()
def load_adapter(model: Decoder, directory: Path, shares: Shares, *, base_checksum: str) -> None:
    """Load a saved adapter into a model that has an adapter of the same shape on the same base."""
    tensors = _read_tensors(directory, base_checksum=base_checksum)
    for layer in [module for module in model.modules() if isinstance(module, LoraLinear)]:
        full_A, full_B = (torch.empty(p.shape) for p in (layer.lora_A, layer.lora_B))
        for projection, A, B in layer.matrices(full_A, full_B):
            for matrix, kind in ((A, "lora_A"), (B, "lora_B")):
                saved = tensors.pop(f"{PEFT_PREFIX}{projection.name}.{kind}.weight", None)
                if saved is None or saved.shape != matrix.shape:
                    shape = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                    raise ModelError(
                        f"{directory}: {kind} of {projection.name} is {shape}, the run's adapter needs "
                        f"{tuple(matrix.shape)}; use the rank and targets it was trained with"
                    )
                matrix.copy_(saved)
        for parameter, full in ((layer.lora_A, full_A), (layer.lora_B, full_B)):
            own, rows = shares.own(parameter)
            own.copy_(full[rows])
    if tensors:
        raise ModelError(
            f'{directory / ADAPTER_WEIGHTS_FILE}: tensor "{min(tensors)}" belongs to no adapter of this model; '
            "use the targets it was trained with"
        )


@torch.no_grad()
def merge_adapter(model: Decoder, directory: Path, shares: Shares) -> None:
    """Add the adapter's product to the weights of its base, a model without an adapter."""
    config = read_adapter_config(directory)
    check_adapter(directory, model.config)
    scale = config["lora_alpha"] / config["r"]
    tensors = _read_tensors(directory, base_checksum=weights_checksum(model.named_parameters(), shares))
    for name, projections in projections_of(model.config):
        own, rows = shares.own(model.get_parameter(f"{name}.weight"))
        for projection in projections:
            A, B = (tensors.get(f"{PEFT_PREFIX}{projection.name}.{kind}.weight") for kind in ("lora_A", "lora_B"))
            if A is not None and B is not None:
                first, last = max(rows.start, projection.begin), min(rows.stop, projection.rows.stop)
                if first < last:
                    product = (B @ A)[first - projection.begin : last - projection.begin]
                    own[first - rows.start : last - rows.start].add_(product.to(own.device), alpha=scale)


def _read_tensors(directory: Path, *, base_checksum: str) -> dict[str, Tensor]:
    """The adapter's tensors, after confirming that they belong to this base."""
    path = directory / ADAPTER_WEIGHTS_FILE
    names = file_headers(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: finite(file.get_tensor(name), name, directory) for name in names}
        metadata = file.metadata() or {}
    # An adapter written by other software has no checksum; only its path names the base.
    trained_on = metadata.get(BASE_CHECKSUM, base_checksum)
    if trained_on != base_checksum:
        raise ModelError(
            f"{path}: trained on a base with checksum {trained_on}, this base has {base_checksum}; the "
            "weights of the base model have changed: restore them"
        )
    return tensors
