"""Shapes of a model's projections from its config.json: what can be said of an adapter without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freerun.config.lora import LoraConfig
from freerun.errors import ConfigError


def projection_shapes(raw: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows and columns of each projection of a layer, by its Hugging Face name."""
    hidden, inner, num_heads = raw["hidden_size"], raw["intermediate_size"], raw["num_attention_heads"]
    head_size = raw.get("head_dim") or hidden // num_heads
    kv_rows = (raw.get("num_key_value_heads") or num_heads) * head_size
    return {
        "q_proj": (num_heads * head_size, hidden),
        "k_proj": (kv_rows, hidden),
        "v_proj": (kv_rows, hidden),
        "o_proj": (hidden, num_heads * head_size),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def check_rank(lora: LoraConfig, raw: Mapping[str, Any], directory: Path) -> None:
    """Refuse a rank that one of the targets cannot have: it would train more numbers than the matrix itself."""
    if not lora.is_on:
        return
    shapes = projection_shapes(raw)
    target = min(lora.targets, key=lambda name: min(shapes[name]))
    rows, columns = shapes[target]
    if lora.rank > min(rows, columns):
        raise ConfigError(
            f"config: lora.rank = {lora.rank} exceeds the rank of {target}, {rows} x {columns} in the model in "
            f"{directory}; lower it to {min(rows, columns)} or leave {target} out of lora.targets"
        )


def num_adapter_parameters(lora: LoraConfig, raw: Mapping[str, Any]) -> int:
    shapes = projection_shapes(raw)
    per_layer = sum(lora.rank * sum(shapes[target]) for target in lora.targets)
    return int(raw["num_hidden_layers"] * per_layer)
