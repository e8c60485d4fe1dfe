"""A turn: one reply of the policy, with the tokens that were given before it. A session is a tree of them.

    Turn ──parent──► Turn ──parent──► None          prompt ids of a turn: given and sampled ids of all before it,
    [given][sampled] [given][sampled]               then its own given ones

Texts are in the form of rendered chats (`Tokenizer.rendered`): names of special tokens are special tokens, and
text that only spells such a name is marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from freerun.chat.messages import Message, Tool
from freerun.types import Completion, Ints


@dataclass(frozen=True)
class Said:
    """The policy's own words."""

    text: str
    """The sampled text, after the beginning of a call if one was forced; without the end token."""
    close: str
    """The sampled end token's name; empty if the turn ended by length or stop string."""


@dataclass(frozen=True)
class Conversation:
    """The messages of a call; those that repeat a turn of the session are replaced by that turn."""

    tools: tuple[Tool, ...]
    items: tuple[Message | Turn, ...]
    last_own: int | None
    """Position of the last turn that replied to exactly the messages before it here; None if there is none."""


@dataclass(frozen=True, eq=False)
class Turn:
    parent: Turn | None
    conversation: Conversation
    """What the turn replies to."""
    given_ids: Ints
    given_text: str
    completion: Completion
    """The completion; its spans carry the call's number."""
    sampled_text: str
    """The completion's text without the end token."""
    said: Said
    message: Message
    """The message that the client got."""
    children: list[Turn] = field(default_factory=list)

    @property
    def token_ids(self) -> Ints:
        """All ids up to the end of this turn."""
        pieces: list[Ints] = []
        for turn in self.path():
            pieces += [turn.given_ids, turn.completion.token_ids]
        return np.concatenate(pieces)

    @property
    def depth(self) -> int:
        return sum(1 for _ in self._to_root())

    def path(self) -> list[Turn]:
        """The turns from the first one to this one."""
        return list(self._to_root())[::-1]

    def _to_root(self) -> Iterator[Turn]:
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent
