"""A small random Llama with one token per character, which can learn a procedural task in minutes.

The vocabulary is `<pad>`, then the characters of the alphabet. A `$` in the alphabet ends a sequence and is still
text; an alphabet without one gets an `<eos>` token. A character outside the alphabet is an error, never an unknown
token. torch and transformers are imported inside the functions: the command line reads the defaults without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from freerun.errors import ModelError
from freerun.model.new_directory import new_directory, require_vacant

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD = "<pad>"
EOS = "<eos>"


def make_tiny(
    directory: Path,
    *,
    alphabet: str,
    hidden_size: int = 128,
    num_layers: int = 3,
    num_heads: int = 4,
    num_kv_heads: int = 4,
    intermediate_size: int = 384,
    max_positions: int = 2048,
    seed: int = 0,
) -> None:
    """Write a Hugging Face directory of an untrained model; the same arguments write the same bytes."""
    require_vacant(directory)
    _check_alphabet(alphabet)
    _check_sizes(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        intermediate_size=intermediate_size,
        max_positions=max_positions,
    )

    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=character_tokenizer(alphabet),
        pad_token=PAD,
        eos_token="$" if "$" in alphabet else EOS,
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    with new_directory(directory) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        # transformers marks every end token as special, and decoding drops special tokens; but a task's `$` is
        # part of the answer that is graded.
        character_tokenizer(alphabet).save(str(temporary / "tokenizer.json"))


def character_tokenizer(alphabet: str) -> Tokenizer:
    """Encodes each character as one token and decodes without adding or dropping a space."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    specials = [PAD] if "$" in alphabet else [PAD, EOS]
    symbols = [*specials, *alphabet]
    tokenizer = Tokenizer(models.WordLevel({symbol: index for index, symbol in enumerate(symbols)}))
    # `.` would not match a line break.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    return tokenizer


def _check_alphabet(alphabet: str) -> None:
    repeated = sorted({character for character in alphabet if alphabet.count(character) > 1})
    if not alphabet or repeated:
        what = f"repeats {''.join(repeated)!r}" if repeated else "is empty"
        raise ModelError(f"the alphabet {alphabet!r} {what}; give each character of the task once")


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelError(f"{name} = {size} must be at least 1")
    hidden_size, num_heads, num_kv_heads = sizes["hidden_size"], sizes["num_heads"], sizes["num_kv_heads"]
    if hidden_size % (2 * num_heads):
        raise ModelError(
            f"hidden_size = {hidden_size} must be a multiple of 2 x num_heads = {2 * num_heads}: "
            "each head rotates its dimensions in pairs"
        )
    if num_heads % num_kv_heads:
        raise ModelError(f"num_heads = {num_heads} must be a multiple of num_kv_heads = {num_kv_heads}")
