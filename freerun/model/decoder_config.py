"""The shape of a decoder, read from a Hugging Face config.json and checked without torch.

What the decoder cannot compute is refused early, by name. `weight_files.py` compares the shape with the tensors on
disk, so a size needs no upper bound unless no tensor has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freerun.config.model_directory import read_object, shown
from freerun.errors import ModelError
from freerun.model.families import FAMILIES
from freerun.model.hub import how_to_fetch, is_hub_name

MAX_FLOAT = 3.4e38
"""The largest float32."""
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
MAX_POSITIONS = 2**24
"""No tensor has a row per position, but the decoder's rotary table does."""
UNQUANTISE = (
    "use the model's unquantised version, or write one with transformers: model.dequantize().save_pretrained(DIR)"
)
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaling of low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class DecoderConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    is_head_tied: bool = True
    rope_scaling: RopeScaling | None = None

    @property
    def cached_per_token(self) -> int:
        """Numbers in the KV cache per token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size


def read_config(directory: Path) -> DecoderConfig:
    """The decoder's shape from config.json; refuses what the decoder cannot compute, by name."""
    path = directory / "config.json"
    if not path.is_file():
        if is_hub_name(str(directory)):
            raise ModelError(f'"{directory}" is not a directory, and {how_to_fetch(str(directory))}')
        raise ModelError(
            f'model directory "{directory}" has no config.json; '
            f"make one with `freerun model smollm2 {directory}` or give a Hugging Face directory"
        )
    raw = read_object(path)
    _check_config(raw, str(path))
    return _shape_of(raw)


def _shape_of(raw: Mapping[str, Any]) -> DecoderConfig:
    rope = _rope_of(raw)
    family, num_heads = FAMILIES[raw["model_type"]], raw["num_attention_heads"]
    return DecoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_size=_head_size(raw),
        norm_eps=float(raw.get("rms_norm_eps") or 1e-6),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        max_positions=raw["max_position_embeddings"],
        has_qkv_bias=family.has_qkv_bias,
        has_qk_norm=family.has_qk_norm,
        is_head_tied=bool(raw.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(rope),
    )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    if _rope_type(rope) == "default":
        return None
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_positions=int(rope["original_max_position_embeddings"]),
    )


def _head_size(raw: Mapping[str, Any]) -> int:
    return int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"])


def _check_config(raw: Mapping[str, Any], where: str) -> None:
    """Refuse other model families, quantised weights, features outside the family, and impossible sizes."""
    kind = raw.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ModelError(
            f"{where}: model_type {shown(kind)} is outside the supported family ({', '.join(FAMILIES)})"
        )
    _check_quantisation(raw, where)
    for key in family.refuses:
        if raw.get(key):
            raise ModelError(f"{where}: {key} = {shown(raw[key])} is not supported by the embedded decoder")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f'{where}: hidden_act = {shown(raw["hidden_act"])} is not supported, only "silu"')
    layer_types = raw.get("layer_types") or []
    if not isinstance(layer_types, list) or any(layer != "full_attention" for layer in layer_types):
        raise ModelError(f'{where}: layer_types other than "full_attention" are not supported')
    _check_sizes(raw, where)
    for key in ("rms_norm_eps", "rope_theta"):
        _check_positive(raw, key, where)
    _check_rope(_rope_of(raw), where)


def _check_quantisation(raw: Mapping[str, Any], where: str) -> None:
    for key in ("quantization_config", "compression_config"):
        if settings := raw.get(key):
            method = shown(settings.get("quant_method")) if isinstance(settings, dict) else "unknown"
            raise ModelError(
                f"{where}: the weights are quantised ({key}, quant_method {method}), which is not supported; "
                f"{UNQUANTISE}"
            )


def _check_sizes(raw: Mapping[str, Any], where: str) -> None:
    for key in (*SIZES, *(name for name in OPTIONAL_SIZES if raw.get(name) is not None)):
        if type(raw.get(key)) is not int or raw[key] < 1:
            raise ModelError(
                f"{where}: {key} = {shown(raw.get(key))} is not a number of at least 1; restore the file"
            )
    if raw["max_position_embeddings"] > MAX_POSITIONS:
        positions = shown(raw["max_position_embeddings"])
        raise ModelError(
            f"{where}: max_position_embeddings = {positions} exceeds {MAX_POSITIONS}; "
            "lower it to the context that you need"
        )
    num_heads, num_kv_heads = raw["num_attention_heads"], raw.get("num_key_value_heads") or 1
    if num_heads % num_kv_heads:
        raise ModelError(
            f"{where}: num_attention_heads = {shown(num_heads)} is not a multiple of num_key_value_heads = "
            f"{shown(num_kv_heads)}; restore the file"
        )
    if _head_size(raw) < 2 or _head_size(raw) % 2:
        raise ModelError(
            f"{where}: attention heads of size {shown(_head_size(raw))} cannot be rotated in pairs; "
            "restore the file"
        )


def _check_positive(settings: Mapping[str, Any], key: str, where: str) -> None:
    """Refuse a value that is present and not a positive number."""
    value = settings.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_FLOAT:
        raise ModelError(f"{where}: {key} = {shown(value)} is not a number greater than 0; restore the file")


def _rope_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings in either spelling: transformers 4 (flat) and 5 (`rope_parameters`)."""
    rope: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return rope


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _check_rope(rope: Mapping[str, Any], where: str) -> None:
    if not isinstance(rope, dict):
        raise ModelError(f"{where}: the rotary settings are not an object; restore the file")
    kind = _rope_type(rope)
    if kind not in ("default", "llama3"):
        raise ModelError(f'{where}: rope_type {shown(kind)} is not supported, only "default" and "llama3"')
    if any(isinstance(value, dict) for value in rope.values()):
        raise ModelError(f"{where}: rotary settings that differ by layer are not supported")
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ModelError(f"{where}: partial_rotary_factor other than 1 is not supported")
    _check_positive(rope, "rope_theta", where)
    for key in LLAMA3_ROPE if kind == "llama3" else ():
        if rope.get(key) is None:
            raise ModelError(f'{where}: rope_type "llama3" has no number "{key}"; restore the file')
        _check_positive(rope, key, where)
