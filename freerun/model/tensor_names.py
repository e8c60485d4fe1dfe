"""How our parameters stack the tensors of a Hugging Face directory: q, k, v are one matrix, gate, up another."""

from __future__ import annotations

from collections.abc import Iterator

from freerun.model.decoder import DecoderConfig


def stacked_parts(config: DecoderConfig) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Our parameter name, and the Hugging Face tensors it stacks with their number of rows (0: not stacked)."""
    q_rows, kv_rows = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    yield "embedding.weight", [("model.embed_tokens.weight", 0)]
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        attention, feed_forward = f"{theirs}.self_attn", f"{theirs}.mlp"
        yield f"{ours}.attention_norm.weight", [(f"{theirs}.input_layernorm.weight", 0)]
        for kind in ("weight", "bias") if config.has_qkv_bias else ("weight",):
            yield (
                f"{ours}.qkv.{kind}",
                [
                    (f"{attention}.q_proj.{kind}", q_rows),
                    (f"{attention}.k_proj.{kind}", kv_rows),
                    (f"{attention}.v_proj.{kind}", kv_rows),
                ],
            )
        if config.has_qk_norm:
            yield f"{ours}.q_norm.weight", [(f"{attention}.q_norm.weight", 0)]
            yield f"{ours}.k_norm.weight", [(f"{attention}.k_norm.weight", 0)]
        yield f"{ours}.attention_out.weight", [(f"{attention}.o_proj.weight", 0)]
        yield f"{ours}.feed_forward_norm.weight", [(f"{theirs}.post_attention_layernorm.weight", 0)]
        yield (
            f"{ours}.gate_up.weight",
            [
                (f"{feed_forward}.gate_proj.weight", config.intermediate_size),
                (f"{feed_forward}.up_proj.weight", config.intermediate_size),
            ],
        )
        yield f"{ours}.down.weight", [(f"{feed_forward}.down_proj.weight", 0)]
    yield "final_norm.weight", [("model.norm.weight", 0)]
    if not config.is_head_tied:
        yield "head.weight", [("lm_head.weight", 0)]
