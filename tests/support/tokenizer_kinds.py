"""Small tokenizers of the kinds in use, made and saved as model directories have them."""

import json
from pathlib import Path

import tokenizers
from small_corpus import CHATML, CORPUS
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from freerun.data.tokenizer import Tokenizer

NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


START, END = 1, 2


SPELLED = "".join(NAMES)
"""Its characters must be in the vocabularies."""


def byte_level() -> tokenizers.Tokenizer:
    """As SmolLM2, Llama 3 and Qwen."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=NAMES, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS * 10, trainer)
    return backend


def added_later() -> tokenizers.Tokenizer:
    """Special tokens outside of the vocabulary, as Llama 3 has them, and a bos token before every text."""
    backend = tokenizers.Tokenizer.from_str(byte_level().to_str())
    backend.add_tokens([AddedToken("<think>", special=False)])
    backend.add_special_tokens([AddedToken("<|eot_id|>", special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", START)]
    )
    return backend


def sentencepiece() -> tokenizers.Tokenizer:
    """Words with a space before them, bytes for what is not known, as Llama 2 and Mistral."""
    corpus = [text.replace(" ", "▁") for text in [*CORPUS, *SPELLED]]
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    specials = ["<unk>", *NAMES[1:], *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=500, special_tokens=specials, show_progress=False)
    )
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def unigram() -> tokenizers.Tokenizer:
    """Its vocabulary has the special tokens among the pieces of text."""
    pieces = [(name, 0.0) for name in NAMES] + [(c, -5.0) for c in sorted({*"".join(CORPUS), *SPELLED, *"BYP"})]
    backend = tokenizers.Tokenizer(models.Unigram([*pieces, ("<unk>", -20.0)], unk_id=len(pieces)))
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(NAMES)
    backend.decoder = decoders.Fuse()
    return backend


KINDS = [byte_level, added_later, sentencepiece, unigram]


def load(directory: Path, backend: tokenizers.Tokenizer) -> Tokenizer:
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (directory / "chat_template.jinja").write_text(CHATML)
    return Tokenizer.load(directory)
