"""The config.json of a model directory, checked without torch: what we cannot compute is refused before any work.

`checkpoint.py` makes the decoder's shape of what was accepted here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freerun.errors import ModelError

SUPPORTED = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def read_config_file(directory: Path) -> dict[str, Any]:
    """What config.json says; refuses what the decoder cannot compute, by name."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(
            f'model directory "{directory}" has no config.json; '
            f"make one with `freerun model smollm2 {directory}` or give a Hugging Face directory"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}: not JSON ({error.msg}); restore the file") from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); restore the file") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: not a JSON object; restore the file")
    check_config(raw, str(path))
    return raw


def head_size(raw: Mapping[str, Any]) -> int:
    return int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"])


def cached_numbers(raw: Mapping[str, Any]) -> int:
    """Numbers that the KV cache holds for one token."""
    num_kv_heads = raw.get("num_key_value_heads") or raw["num_attention_heads"]
    return int(2 * raw["num_hidden_layers"] * num_kv_heads * head_size(raw))


def check_config(raw: Mapping[str, Any], where: str) -> None:
    """Refuse another family than ours, features that it has not, and sizes that are none."""
    kind = raw.get("model_type")
    if kind not in SUPPORTED:
        raise ModelError(f'{where}: model_type "{kind}" is outside the supported family ({", ".join(SUPPORTED)})')
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(key):
            raise ModelError(f"{where}: {key} = true is not supported by the embedded decoder")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f'{where}: hidden_act = "{raw["hidden_act"]}" is not supported, only "silu"')
    for key in (*SIZES, *(name for name in OPTIONAL_SIZES if raw.get(name) is not None)):
        if type(raw.get(key)) is not int or raw[key] < 1:
            raise ModelError(
                f"{where}: {key} = {json.dumps(raw.get(key))} is not a number of at least 1; restore the file"
            )
    _check_rope(rope_of(raw), where)


def rope_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings in either spelling: transformers 4 (flat) and 5 (`rope_parameters`)."""
    rope: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return rope


def rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _check_rope(rope: Mapping[str, Any], where: str) -> None:
    if not isinstance(rope, dict):
        raise ModelError(f"{where}: the rotary settings are not an object; restore the file")
    kind = rope_type(rope)
    if kind not in ("default", "llama3"):
        raise ModelError(f'{where}: rope_type "{kind}" is not supported, only "default" and "llama3"')
    for key in LLAMA3_ROPE if kind == "llama3" else ():
        if not isinstance(rope.get(key), int | float):
            raise ModelError(f'{where}: rope_type "llama3" has no number "{key}"; restore the file')
