"""Small models of the family, made by transformers."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


FAMILY: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig(**SHAPE, tie_word_embeddings=True), LlamaForCausalLM),
    "llama untied": (LlamaConfig(**SHAPE, tie_word_embeddings=False), LlamaForCausalLM),
    "llama 3 rope": (LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE), LlamaForCausalLM),
    "qwen2": (Qwen2Config(**SHAPE, tie_word_embeddings=True), Qwen2ForCausalLM),
    "qwen3": (Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False), Qwen3ForCausalLM),
}


def make_reference(name: str, directory: Path) -> Any:
    """A randomly initialised transformers model with no parameter, norm or bias, at its default."""
    torch.manual_seed(0)
    config, model_class = FAMILY[name]
    reference = model_class(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    reference.save_pretrained(directory)
    return reference
