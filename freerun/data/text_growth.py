"""The maximal growth of a text by a tokenizer, from its normalizer, pre-tokenizer and decoder.

A chain of replacements can double a text repeatedly, and the library applies it without a limit. Real tokenizers
replace one character by one other, or a ligature by up to 18.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import tokenizers

MAX_GROWTH = 200.0
_LENGTH = 1000.0
"""Length of the text that is traced through the chain, in characters."""
_CHILDREN = ("normalizers", "pretokenizers", "decoders", "processors")
_FACTORS = {"ByteLevel": 4.0, "BertNormalizer": 3.0}
"""Bytes as characters; spaces around ideographs. Components not listed add no length."""


def growth(backend: tokenizers.Tokenizer) -> float:
    """The largest factor by which a text can grow in encoding or decoding."""
    length = _LENGTH
    for part in (backend.normalizer, backend.pre_tokenizer, backend.post_processor):
        length = _after(_state(part), length)
    return max(length, _after(_state(backend.decoder), _LENGTH)) / _LENGTH


def _state(part: Any) -> Mapping[str, Any]:
    return {} if part is None else json.loads(part.__getstate__())


def _after(state: Mapping[str, Any], length: float) -> float:
    """The maximal length that one component can make of a text of this length."""
    for key in _CHILDREN:
        for child in state.get(key) or ():
            length = _after(child, length)
    match state:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return length * max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:  # the pattern may match the empty string, so anywhere
            return length * (1 + len(content)) + len(content)
        case {"type": "Prepend", "prepend": str(prefix)}:
            return length + len(prefix)
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            return length * _longest_replacement(charsmap)
        case {"type": "TemplateProcessing", "single": list(pieces), "special_tokens": dict(tokens)}:
            num_copies = sum("Sequence" in piece for piece in pieces)
            return length * num_copies + sum(_num_ids(piece, tokens) for piece in pieces)
        case {"type": str(kind)}:
            return length * _FACTORS.get(kind, 1.0)
    return length


def _num_ids(piece: Mapping[str, Any], tokens: Mapping[str, Any]) -> int:
    name = piece.get("SpecialToken", {}).get("id")
    return len(tokens[name]["ids"]) if name in tokens else 0


def _longest_replacement(charsmap: str) -> float:
    """In bytes. The map is a trie, preceded by its size, then the replacements, each ended by a zero byte."""
    try:
        data = base64.b64decode(charsmap)
    except binascii.Error:
        return 1.0
    replacements = data[4 + int.from_bytes(data[:4], "little") :]
    return float(max(1, *map(len, replacements.split(b"\0"))))
