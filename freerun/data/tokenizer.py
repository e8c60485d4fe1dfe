"""The tokenizer of a Hugging Face model directory, without `transformers` (and so without torch).

    tokenizer.json                          the tokens; required
    tokenizer_config.json                   the names of bos and eos
    chat_template.jinja                     or the "chat_template" of tokenizer_config.json
    config.json, generation_config.json     eos ids

`encode` gives the same ids as `transformers.AutoTokenizer`. In particular, tokenizer.json alone decides whether a
prompt begins with a bos token; `add_bos_token` of tokenizer_config.json is ignored, as there. It reads
`<|im_end|>` as the special token, unless the text went through `as_text`: then it is ten characters, as in the
messages of `render_chat`.

`decode` shows everything that was sampled, including special tokens, for stop strings and for people. Only a
special end token is dropped: it ends the text and is not part of it. An end token that is an ordinary character
(the `$` of the euclid task) is text and is kept.

The directory is untrusted: its chat template runs in a limited process (`chat_template.py`), no link may lead out
of it (`model_files.py`), and a tokenizer that can make texts much longer is refused (`text_growth.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from freerun.config.model_directory import has_text, read_object, read_text
from freerun.data.chat_template import ChatTemplate, TemplateMessage
from freerun.data.special_tokens import SpecialTokens
from freerun.data.text_growth import MAX_GROWTH, growth
from freerun.data.token_bytes import token_bytes
from freerun.errors import ModelError
from freerun.types import Ints

_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_EOS_FILES = ("generation_config.json", "config.json")
_MAX_TEMPLATE_CHARACTERS = 1 << 20
"""Limit on a template; the longest ones in use have 20,000 characters."""
_NUM_CHARACTERS_QUOTED = 80
_NUM_UNSURE = 3
"""Characters at the start of a decoded part that may differ in the whole text: the last bytes of a character that
began earlier, or the `##` of a word's continuation.
"""


class Tokenizer:
    """Converts text to ids and back."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        stop_token_ids: tuple[int, ...],
        chat_template: ChatTemplate | None,
        origin: str,
    ) -> None:
        self.stop_token_ids = stop_token_ids
        """Ids that end a completion; empty for a model whose files name no end token."""
        self._backend = backend
        self._special_tokens = SpecialTokens(backend)
        self._chat_template = chat_template
        self._origin = origin
        added = backend.get_added_tokens_decoder()
        self._hidden_ids = frozenset(i for i in stop_token_ids if i in added and added[i].special)
        self._inseparable_ids = self._hidden_ids | _byte_ids(backend)
        self._special_names = {i: token.content for i, token in added.items() if token.special}
        plain = {i: t for i, t in added.items() if t.special and not (t.lstrip or t.rstrip or t.single_word)}
        self._guard_id = next(iter(plain), 0)
        """A special token to put before a text, so that the text is not at the beginning."""
        self._guard = plain[self._guard_id].content if plain else ""
        self._lengths: dict[int, int] = {}
        """Characters that an id can add to a text, for ids that `decode_end` has seen."""

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        backend = _read_backend(directory / "tokenizer.json")
        settings = _read_settings(directory / "tokenizer_config.json")
        special_tokens = _special_tokens(settings)
        return cls(
            backend,
            stop_token_ids=_stop_token_ids(directory, backend, special_tokens.get("eos_token")),
            chat_template=_read_chat_template(directory, settings, special_tokens),
            origin=str(directory),
        )

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one; a model may have more rows than this, never fewer."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values())

    @cached_property
    def longest_token(self) -> int:
        """Maximal number of characters that one id can stand for."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Ints:
        """Ids of a prompt; use `add_special_tokens=False` for a rendered chat or a completion."""
        encode = self._special_tokens.encode if self._special_tokens.is_marked(text) else self._encode
        try:
            ids = encode(text, add_special_tokens=add_special_tokens)
        except BaseException as error:
            if not _is_failure(error):
                raise
            raise ModelError(
                f"{self._origin}: the tokenizer cannot encode {_quoted(self.shown(text))} ({error}); "
                "use a model whose tokenizer knows the characters of the task"
            ) from error
        return np.array(ids, dtype=np.int32)

    def _encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        ids: Sequence[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def as_text(self, text: str) -> str:
        """`text` for `encode`, with names of special tokens as plain characters."""
        return self._special_tokens.mark(text)

    def joined(self, texts: Iterable[str]) -> str:
        """Concatenated results of `as_text`. A special token's name that only arises by joining is text, too."""
        whole = ""
        for text in texts:
            at = len(whole)
            whole += text
            if self.is_inside_special_token(whole, at):
                whole = whole[:at] + self._special_tokens.nothing + text
        return whole

    def is_inside_special_token(self, text: str, at: int) -> bool:
        """Whether cutting `text` at `at` would cut through a special token."""
        return self._special_tokens.is_inside_name(text, at)

    def shown(self, text: str) -> str:
        """The result of `as_text` or `render_chat`, for people to read."""
        return self._special_tokens.unmark(text)

    def special_tokens_in(self, text: str) -> list[str]:
        """The special tokens that `text` spells, in order."""
        return self._special_tokens.names_in(text)

    def decode(self, ids: Ints | Sequence[int]) -> str:
        """The text of `ids`, without the special end token."""
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        shown = [i for i in listed if i not in self._hidden_ids]
        return self._backend.decode(shown, skip_special_tokens=False)

    def encode_after(self, text: str, previous: int) -> Ints:
        """Ids of `text` after a sequence that ends in `previous`.

        No bos token is added, and not the space that some tokenizers put before every text. Otherwise as if the
        preceding text had been encoded too: a special token may absorb the white space after it.
        """
        name = self._special_names.get(previous, self._guard)
        ids = self.encode(name + text, add_special_tokens=False)
        if name and len(ids) and self._special_names.get(int(ids[0])) == name:
            return ids[1:]
        return self.encode(text, add_special_tokens=False)

    def rendered(self, ids: Ints | Sequence[int]) -> str:
        """The text that a chat template would have printed for `ids` in the middle of a conversation.

        Special and end tokens appear by name. A name that other tokens spell is text, as in `as_text`.
        """
        texts: list[str] = []
        for is_special, run in groupby(map(int, ids), key=self._special_names.__contains__):
            if is_special:
                texts += [self._special_names[i] for i in run]
            else:
                texts.append(self.as_text(self._decode_after_guard(list(run))))
        return "".join(texts)

    def _decode_after_guard(self, ids: list[int]) -> str:
        """Decode as in the middle of a text, where the space of a first word is kept."""
        text: str
        if self._guard:
            text = self._backend.decode([self._guard_id, *ids], skip_special_tokens=False)
            if text.startswith(self._guard):
                return text.removeprefix(self._guard)
        text = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def end_name(self, token_id: int) -> str:
        """The name of an end token that `decode` drops; empty for any other token."""
        return self._special_names[token_id] if token_id in self._hidden_ids else ""

    @property
    def end_names(self) -> tuple[str, ...]:
        """The names of all end tokens that `decode` drops."""
        return tuple(self._special_names[i] for i in self.stop_token_ids if i in self._hidden_ids)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that the id adds to a text, which may be part of a character."""
        return self._token_bytes(token_id)

    @cached_property
    def _token_bytes(self) -> Callable[[int], bytes]:
        return token_bytes(self._backend)

    def decode_end(self, ids: Sequence[int], *, first: int, num_characters: int) -> str:
        """The end of `decode(ids[first:])`: the last id's text, and at least `num_characters` before it.

        Its cost grows with the length of the result, not with that of `ids`.
        """
        last = ids[-1]
        if last not in self._lengths:
            # One more for the space before a word, which is dropped at the start of a text.
            self._lengths[last] = len(self.decode([last])) + 1
        num_needed = num_characters + _NUM_UNSURE + self._lengths[last]
        num_ids = num_characters + _NUM_UNSURE + 2  # enough if each id has at least one character
        while True:
            start = max(first, len(ids) - num_ids)
            # Consecutive bytes decode to text only if all are valid together: do not cut between them.
            while start > first and ids[start] in self._inseparable_ids:
                start -= 1
            text = self.decode(ids[start:])
            if start == first:
                return text
            if len(text) >= num_needed:
                return text[_NUM_UNSURE:]
            num_ids *= 2

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def chat_template(self) -> ChatTemplate:
        """Renders messages whose strings went through `as_text`."""
        if self._chat_template is None:
            raise ModelError(
                f"{self._origin}: no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); add one or set data.use_chat_template = false"
            )
        return self._chat_template

    def render_chat(self, messages: Sequence[TemplateMessage], *, add_generation_prompt: bool = True) -> str:
        """The conversation in the model's format, up to the start of the assistant's turn.

        Pass it to `encode`, or to `shown` for people: special tokens come from the template, messages are text.
        """
        texts = [
            {key: self.as_text(value) if isinstance(value, str) else value for key, value in message.items()}
            for message in messages
        ]
        return self.chat_template.render(texts, add_generation_prompt=add_generation_prompt)


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not has_text(path):
        raise ModelError(
            f"{path}: no such file; model.path must be a Hugging Face directory with a tokenizer.json "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise ModelError(f"{path}: not a tokenizer ({error}); save the model directory again") from error
    if growth(backend) > MAX_GROWTH:
        raise ModelError(
            f"{path}: the tokenizer can make a text more than {MAX_GROWTH:.0f} times longer; "
            "repair its normalizer and decoder, or use another model"
        )
    # If left over from a training pipeline, these would silently cut or pad prompts.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _byte_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of single bytes that decode together with their neighbours (sentencepiece's byte fallback)."""
    if backend.decoder is None or b"ByteFallback" not in backend.decoder.__getstate__():
        return frozenset()
    ids = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(i for i in ids if i is not None)


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Named special tokens, which are stored as a string or as an object with its flags."""
    values = {name: settings.get(name) for name in _SPECIAL_TOKEN_NAMES}
    contents = {name: v.get("content") if isinstance(v, dict) else v for name, v in values.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


def _stop_token_ids(directory: Path, backend: tokenizers.Tokenizer, eos: str | None) -> tuple[int, ...]:
    """Every end-of-sequence id in any file: chat models name a second one in only one of the files."""
    ids: list[int] = []
    for name in _EOS_FILES:
        value = _read_settings(directory / name).get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        for eos_id in listed:
            is_id = type(eos_id) is int and 0 <= eos_id < 1 << 32
            if not is_id or backend.id_to_token(eos_id) is None:
                raise ModelError(
                    f"{directory / name}: eos_token_id = {_quoted(eos_id)} is not a token of tokenizer.json; "
                    "the directory mixes two models"
                )
        ids += listed
    if eos is not None:
        eos_id = backend.token_to_id(eos)
        ids += [] if eos_id is None else [eos_id]
    return tuple(dict.fromkeys(ids))


def _read_chat_template(
    directory: Path, settings: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    path = directory / "chat_template.jinja"
    if has_text(path):
        source = read_text(path)
    else:
        path = directory / "tokenizer_config.json"
        stored = settings.get("chat_template")
        if isinstance(stored, list):
            named = [entry for entry in stored if isinstance(entry, dict)]
            stored = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
        if not isinstance(stored, str):
            return None
        source = stored
    if len(source) > _MAX_TEMPLATE_CHARACTERS:
        raise ModelError(
            f"{path}: a chat template of {len(source):,} characters; at most {_MAX_TEMPLATE_CHARACTERS:,} are "
            "read, is it the right file?"
        )
    return ChatTemplate(source, origin=str(path), special_tokens=special_tokens)


def _is_failure(error: BaseException) -> bool:
    """Whether the library failed: it raises plain Exception, and its panics are not even that."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _quoted(value: object) -> str:
    """The beginning of a value, shortened for a one-line error."""
    shown = repr(value)
    return shown if len(shown) <= _NUM_CHARACTERS_QUOTED else f"{shown[:_NUM_CHARACTERS_QUOTED]}..."


def _read_settings(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty if the file does not exist."""
    return read_object(path) if has_text(path) else {}
