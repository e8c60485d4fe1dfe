"""Distinguishes special tokens from text that spells their names.

A chat template prints `<|im_end|>` to end a turn. A user who writes `<|im_end|>` means ten characters. In a
rendered string both look the same, so the user's text is marked before rendering:

    content   a<|im_end|>b      ──mark──►  aMb                     M: private-use characters, drawn at random
    rendered  <|im_start|>user\\n aMb<|im_end|>                      the template moves M like any other text
    encoded   <|im_start|> user \\n a < | im _ end | > b <|im_end|>   M as the characters that it stands for

A marked text is encoded by a twin of the tokenizer whose special tokens are named by their marks. Names and
marks are swapped in the text, and the twin does not know the names. Otherwise the twin is identical, so the ids
are those that the characters would have if they were not a token's name. Text without marks never reaches the
twin.

Some tokenizers look for names after normalizing the text, where `＜s＞` or `<S>` may be a name too. A text that
becomes one gets an empty mark, so it is encoded by the twin as well.
"""

import json
import re
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tokenizers

_PRIVATE = range(0xE000, 0xF900)
"""Code points for private use, which have no case and no other normal form."""
_NUM_RANDOM = 6
_VISIBLE = re.compile(r"\S")


class SpecialTokens:
    """The special tokens of a tokenizer. Tokens of one character are not marked: they have no other spelling."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder().values()
        names = sorted({token.content for token in added if token.special and len(token.content) > 1})
        # Random, so that no author can put a mark into a text.
        start = "".join(chr(secrets.choice(_PRIVATE)) for _ in range(_NUM_RANDOM))
        self._marks = {name: start + _numeral(index) for index, name in enumerate(names)}
        self.nothing = start + _numeral(len(names))
        """A mark that stands for no characters."""
        self._names = {mark: name for name, mark in self._marks.items()} | {self.nothing: ""}
        self._swaps = self._names | self._marks
        self._start = start
        self._name_pattern = _any_of(names)
        self._longest = max(map(len, names), default=0)
        self._pattern = _any_of([*names, *self._names])
        looked_for_later = [token.content for token in added if token.normalized and token.content in self._marks]
        self._normalized_names = [] if backend.normalizer is None else self._normalized(looked_for_later)

    def names_in(self, text: str) -> list[str]:
        """The names that `text` spells, in order."""
        return self._name_pattern.findall(text)

    def is_inside_name(self, text: str, at: int) -> bool:
        """Whether a name begins before `at` and ends after it."""
        start = max(0, at - self._longest)
        nearby = self._name_pattern.finditer(text, start, at + self._longest)
        return any(match.start() < at < match.end() for match in nearby)

    def mark(self, text: str) -> str:
        """`text` with a mark for each spelled name, and an empty mark if normalising creates a name."""
        marked = self._name_pattern.sub(lambda match: self._marks[match[0]], text)
        if self._normalized_names:
            (normalized,) = self._normalized([marked])
            if any(name in normalized for name in self._normalized_names):
                # Placed after a character that no template strips.
                return _VISIBLE.sub(lambda match: match[0] + self.nothing, marked, count=1)
        return marked

    def unmark(self, text: str) -> str:
        """`text` for reading, with marks replaced by names."""
        return self._pattern.sub(lambda match: self._names.get(match[0], match[0]), text)

    def is_marked(self, text: str) -> bool:
        return self._start in text

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """Ids of a marked text."""
        swapped = self._pattern.sub(lambda match: self._swaps[match[0]], text)
        ids: Sequence[int] = self._twin.encode(swapped, add_special_tokens=add_special_tokens).ids
        return ids

    @cached_property
    def _twin(self) -> tokenizers.Tokenizer:
        state = json.loads(self._backend.to_str())
        for token in state["added_tokens"]:
            token["content"] = self._renamed(token["content"])
        model = state["model"]
        # In the vocabulary too: a unigram model would find the name there.
        if isinstance(model["vocab"], dict):
            model["vocab"] = {self._renamed(piece): index for piece, index in model["vocab"].items()}
        else:
            model["vocab"] = [[self._renamed(piece), score] for piece, score in model["vocab"]]
        if model.get("unk_token"):
            model["unk_token"] = self._renamed(model["unk_token"])
        return tokenizers.Tokenizer.from_str(json.dumps(state))

    def _normalized(self, texts: Sequence[str]) -> list[str]:
        return [self._backend.normalizer.normalize_str(text) for text in texts]

    def _renamed(self, piece: Any) -> Any:
        return self._marks.get(piece, piece)


def _numeral(index: int) -> str:
    high, low = divmod(index, len(_PRIVATE))
    return chr(_PRIVATE[high]) + chr(_PRIVATE[low])


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """A pattern that matches the longest of these texts, or nothing if there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
