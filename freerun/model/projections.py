"""Shapes of a model's projections from its config.json: the sizes of adapters without torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from freerun.config.lora import LoraConfig
from freerun.errors import ConfigError
from freerun.model.decoder_config import shape_of
from freerun.model.families import stacked_parts


def projection_shapes(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Rows and columns of each projection of a layer, by its Hugging Face name."""
    tensors = [part for _, parts in stacked_parts(replace(shape_of(raw), num_layers=1)) for part in parts]
    return {name.split(".")[-2]: shape for name, shape in tensors if name.endswith("_proj.weight")}


def check_rank(lora: LoraConfig, raw: Mapping[str, Any], directory: Path) -> None:
    """Refuse a rank above that of a target: it would train more numbers than the matrix itself."""
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
