"""The bytes that each token adds to a text; a character may be spread over several tokens.

Byte-level tokenizers write each byte as one printable character, others have tokens such as `<0xE6>`. For all
other tokens, the bytes are what the token alone decodes to.
"""

import re
from collections.abc import Callable

import tokenizers

_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""Bytes that stand for themselves in a byte-level vocabulary; the others are characters from 256 on."""


def token_bytes(backend: tokenizers.Tokenizer) -> Callable[[int], bytes]:
    """A function from ids to bytes for this tokenizer."""
    decoder = b"" if backend.decoder is None else backend.decoder.__getstate__()
    alphabet = _alphabet() if b"ByteLevel" in decoder else {}
    added = backend.get_added_tokens_decoder()

    def bytes_of(token_id: int) -> bytes:
        piece = backend.id_to_token(token_id) or ""
        if token_id not in added:
            if alphabet and all(character in alphabet for character in piece):
                return bytes(alphabet[character] for character in piece)
            if b"ByteFallback" in decoder and (byte := _ONE_BYTE.fullmatch(piece)):
                return bytes.fromhex(byte[1])
        text: str = backend.decode([token_id], skip_special_tokens=False)
        return text.encode()

    return bytes_of


def _alphabet() -> dict[str, int]:
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(others)}
