"""The model families that the decoder supports: one table, and the names of their tensors.

A family is one `model_type` of a Hugging Face config.json. All are Llama-like (RMSNorm, RoPE, grouped-query
attention, SwiGLU) and name their tensors alike; the table says where they differ. A new one is a row here, and a
row in `tests/support/reference_models.py`, by which the tests compare it with transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from freerun.config.lora import LORA_TARGETS

if TYPE_CHECKING:
    from freerun.model.decoder_config import DecoderConfig


@dataclass(frozen=True)
class ModelFamily:
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    refuses: tuple[str, ...] = ("attention_bias", "mlp_bias", "use_sliding_window")
    """Settings of config.json that would change the computation."""


FAMILIES = {
    "llama": ModelFamily(),
    "qwen2": ModelFamily(has_qkv_bias=True),
    "qwen3": ModelFamily(has_qk_norm=True),
}
"""Families by model_type."""

TensorPart = tuple[str, tuple[int, ...]]
"""A Hugging Face tensor: its name and its shape."""


def stacked_parts(config: DecoderConfig) -> Iterator[tuple[str, list[TensorPart]]]:
    """Our parameters by name, each with the Hugging Face tensors stacked in it.

    q, k and v are stacked in one matrix, and so are gate and up.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    yield "embedding.weight", [("model.embed_tokens.weight", (config.vocab_size, hidden))]
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        attention, feed_forward = f"{theirs}.self_attn", f"{theirs}.mlp"
        yield f"{ours}.attention_norm.weight", [(f"{theirs}.input_layernorm.weight", (hidden,))]
        rows = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        yield f"{ours}.qkv.weight", [(f"{attention}.{name}.weight", (n, hidden)) for name, n in rows.items()]
        if config.has_qkv_bias:
            yield f"{ours}.qkv.bias", [(f"{attention}.{name}.bias", (n,)) for name, n in rows.items()]
        if config.has_qk_norm:
            yield f"{ours}.q_norm.weight", [(f"{attention}.q_norm.weight", (config.head_size,))]
            yield f"{ours}.k_norm.weight", [(f"{attention}.k_norm.weight", (config.head_size,))]
        yield f"{ours}.attention_out.weight", [(f"{attention}.o_proj.weight", (hidden, q_rows))]
        yield f"{ours}.feed_forward_norm.weight", [(f"{theirs}.post_attention_layernorm.weight", (hidden,))]
        yield (
            f"{ours}.gate_up.weight",
            [(f"{feed_forward}.{name}.weight", (inner, hidden)) for name in ("gate_proj", "up_proj")],
        )
        yield f"{ours}.down.weight", [(f"{feed_forward}.down_proj.weight", (hidden, inner))]
    yield "final_norm.weight", [("model.norm.weight", (hidden,))]
    if not config.is_head_tied:
        yield "head.weight", [("lm_head.weight", (config.vocab_size, hidden))]


@dataclass(frozen=True)
class Projection:
    """One Hugging Face projection and its rows in our layer that stacks it."""

    name: str
    """Module name, such as model.layers.0.self_attn.q_proj."""
    begin: int
    num_rows: int
    num_columns: int

    @property
    def target(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def rows(self) -> slice:
        return slice(self.begin, self.begin + self.num_rows)


def projections_of(config: DecoderConfig) -> Iterator[tuple[str, list[Projection]]]:
    """Our linear layers by name, each with the projections stacked in it."""
    for ours, parts in stacked_parts(config):
        projections: list[Projection] = []
        begin = 0
        for theirs, shape in parts:
            projection = Projection(theirs.removesuffix(".weight"), begin, shape[0], shape[-1])
            if theirs.endswith(".weight") and projection.target in LORA_TARGETS:
                projections.append(projection)
            begin += shape[0]
        if projections:
            yield ours.removesuffix(".weight"), projections
