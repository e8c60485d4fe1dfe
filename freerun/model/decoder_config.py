"""The shape of a decoder, derived from a Hugging Face config.json without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freerun.model.config_file import head_size, read_config_file, rope_of, rope_type
from freerun.model.families import FAMILIES


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


def read_config(directory: Path) -> DecoderConfig:
    """The decoder's shape from config.json; refuses what the decoder cannot compute, by name."""
    return shape_of(read_config_file(directory))


def shape_of(raw: Mapping[str, Any]) -> DecoderConfig:
    """The decoder's shape from a checked config.json."""
    rope = rope_of(raw)
    family, num_heads = FAMILIES[raw["model_type"]], raw["num_attention_heads"]
    return DecoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_size=head_size(raw),
        norm_eps=float(raw.get("rms_norm_eps") or 1e-6),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        max_positions=raw["max_position_embeddings"],
        has_qkv_bias=family.has_qkv_bias,
        has_qk_norm=family.has_qk_norm,
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
