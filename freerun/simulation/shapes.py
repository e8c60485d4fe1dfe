"""Model sizes for cost models: from a config.json, or by the name of a well-known model.

A plan needs the sizes of a model, not its weights: `--model qwen2.5-7b` works without that model on this machine.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from freerun.errors import FreerunError
from freerun.model.adapter_directory import model_config
from freerun.model.decoder_config import DecoderConfig

BFLOAT16_BYTES = 2


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    is_head_tied: bool = False

    @property
    def num_multiplied(self) -> int:
        """Number of parameters in the matrix products of one token: all but the embedding."""
        attention = self.hidden_size * self.head_size * 2 * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * layer + self.hidden_size * self.vocab_size

    @property
    def num_parameters(self) -> int:
        return self.num_multiplied + (0 if self.is_head_tied else self.hidden_size * self.vocab_size)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of one token, in bfloat16."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * BFLOAT16_BYTES

    @property
    def attention_flops(self) -> int:
        """Attention operations of one token per token of context."""
        return 4 * self.num_layers * self.num_heads * self.head_size

    @property
    def activation_bytes(self) -> int:
        """Bytes that a token's forward pass keeps for the backward pass, without recomputation; an estimate."""
        return self.num_layers * BFLOAT16_BYTES * (4 * self.intermediate_size + 11 * self.hidden_size)


MODEL_SHAPES = {
    "qwen2.5-0.5b": ModelShape(24, 896, 14, 2, 64, 4864, 151936, is_head_tied=True),
    "qwen2.5-1.5b": ModelShape(28, 1536, 12, 2, 128, 8960, 151936, is_head_tied=True),
    "qwen2.5-3b": ModelShape(36, 2048, 16, 2, 128, 11008, 151936, is_head_tied=True),
    "qwen2.5-7b": ModelShape(28, 3584, 28, 4, 128, 18944, 152064),
    "qwen2.5-14b": ModelShape(48, 5120, 40, 8, 128, 13824, 152064),
    "qwen2.5-32b": ModelShape(64, 5120, 40, 8, 128, 27648, 152064),
    "llama-3.1-8b": ModelShape(32, 4096, 32, 8, 128, 14336, 128256),
    "smollm2-135m": ModelShape(30, 576, 9, 3, 64, 1536, 49152, is_head_tied=True),
}
"""Shapes by the names that `--model` accepts."""


def shape_of(config: DecoderConfig) -> ModelShape:
    return ModelShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        is_head_tied=config.is_head_tied,
    )


def find_shape(name: str, directory: str) -> ModelShape:
    """The shape of this name, or without a name that of the model in the directory."""
    if not name:
        return shape_of(model_config(Path(directory)))
    if name in MODEL_SHAPES:
        return MODEL_SHAPES[name]
    near = difflib.get_close_matches(name, MODEL_SHAPES, n=1)
    remedy = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(MODEL_SHAPES)}"
    raise FreerunError(f'unknown model "{name}"; {remedy}, or set model.path to a directory with a config.json')
