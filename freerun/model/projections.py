"""Shapes of a model's projections from its config.json: the sizes of adapters and packed copies without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freerun.config.lora import LoraConfig
from freerun.errors import ConfigError

MIN_PACKED_ELEMENTS = 2**18
"""Of a matrix worth packing: below, oneDNN's longer way to the product (15 microseconds a call) costs more than it
saves."""


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


def num_packed_elements(raw: Mapping[str, Any]) -> int:
    """Numbers in the matrices that generation on a CPU packs (`packed.py`), stacked as in the decoder."""
    size = {name: rows * columns for name, (rows, columns) in projection_shapes(raw).items()}
    layer = (
        size["q_proj"] + size["k_proj"] + size["v_proj"],
        size["o_proj"],
        size["gate_proj"] + size["up_proj"],
        size["down_proj"],
    )
    matrices = (*layer * raw["num_hidden_layers"], _num_embedded(raw))
    return sum(elements for elements in matrices if elements >= MIN_PACKED_ELEMENTS)


def num_kept_twice(raw: Mapping[str, Any]) -> int:
    """Of the packed ones those that generation reads as they are too: an embedding that is also the head."""
    num_embedded = _num_embedded(raw)
    return num_embedded if raw.get("tie_word_embeddings") and num_embedded >= MIN_PACKED_ELEMENTS else 0


def _num_embedded(raw: Mapping[str, Any]) -> int:
    """Numbers in the embedding, and in the head."""
    return int(raw["vocab_size"] * raw["hidden_size"])
