"""The sessions of a server: each conversation has one, which is found by the messages in it.

    request ─► marks of its messages ─► the session that wrote the last reply in them, or a new one

HTTP clients send the whole conversation each time. A mark identifies a conversation up to one message. The
marks of all replies are kept, so a request that continues, edits or repeats a conversation finds the session
that has its beginning in a cache. When a session has expired, only the cache is lost: the next request opens a
new session.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from freerun.chat.echoes import meaning_of
from freerun.chat.messages import ChatCall, Message, Reply
from freerun.gateway.sessions import Session

Mark = bytes
_MARK_BYTES = 16


class OpenSession(Session, Protocol):
    """A session that the server opens and ends."""

    def end(self) -> None: ...


@dataclass(frozen=True)
class ConversationLimits:
    """Limits after which a conversation gives up its session."""

    idle_seconds: float = 1800.0
    max_conversations: int = 256
    max_turns: int = 256
    """A session keeps its calls for clients that retry; a longer conversation moves to a new session."""


CONVERSATION_LIMITS = ConversationLimits()


class LiveConversation:
    """Implements `Session`: passes calls on and marks their replies."""

    def __init__(self, session: OpenSession, mark_reply: Callable[[Mark], None]) -> None:
        self.session = session
        self.last_used = 0.0
        self.num_turns = 0
        self.num_in_flight = 0
        self.marks: list[Mark] = []
        """All marks that lead to this conversation."""
        self._mark_reply = mark_reply

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        self.num_in_flight += 1
        self.num_turns += call.num_replies
        try:
            replies = await self.session.reply(call)
        finally:
            self.num_in_flight -= 1
        *_, asked = _marks_of(call.messages)
        for reply in replies:
            self._mark_reply(_next_mark(asked, reply.message))
        return replies


class Conversations:
    """Implements `SessionDirectory` for clients that all use one key."""

    def __init__(
        self,
        model_name: str,
        *,
        key: str,
        open_session: Callable[[], OpenSession],
        limits: ConversationLimits = CONVERSATION_LIMITS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model_name = model_name
        self._key = key.encode()
        self._open_session = open_session
        self._limits = limits
        self._now = now
        self._live: dict[LiveConversation, None] = {}
        """Ordered by last use; the least recently used conversation comes first."""
        self._asked: dict[Mark, LiveConversation] = {}
        """By mark, the conversation that was last asked to continue there."""
        self._replied: dict[Mark, LiveConversation] = {}
        """By mark, the conversation whose reply last ended there."""

    def __len__(self) -> int:
        return len(self._live)

    def accepts(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(), self._key)

    def find(self, key: str, call: ChatCall) -> LiveConversation:
        marks = [*_marks_of(call.messages)]
        conversation = self._continued(call, marks) or self._begun()
        conversation.last_used = self._now()
        self._live.pop(conversation, None)
        self._live[conversation] = None
        self._mark(self._asked, marks[-1], conversation)
        self._expire(kept=conversation)
        return conversation

    def _continued(self, call: ChatCall, marks: Sequence[Mark]) -> LiveConversation | None:
        """The conversation with the last known reply among the call's messages, unless it has no turns left."""
        if call.is_retry and marks[-1] in self._asked:
            return self._asked[marks[-1]]
        found = next((self._replied[mark] for mark in reversed(marks) if mark in self._replied), None)
        has_room = found is not None and found.num_turns + call.num_replies <= self._limits.max_turns
        return found if has_room else None

    def _begun(self) -> LiveConversation:
        conversation = LiveConversation(
            self._open_session(), lambda mark: self._mark(self._replied, mark, conversation)
        )
        return conversation

    def _mark(self, index: dict[Mark, LiveConversation], mark: Mark, conversation: LiveConversation) -> None:
        if conversation in self._live:
            index[mark] = conversation
            conversation.marks.append(mark)

    def _expire(self, *, kept: LiveConversation) -> None:
        """End idle conversations, and the least recently used of too many; never one with a call in flight."""
        num_surplus = len(self._live) - self._limits.max_conversations
        idle_since = self._now() - self._limits.idle_seconds
        for conversation in [one for one in self._live if not one.num_in_flight and one is not kept]:
            if num_surplus <= 0 and conversation.last_used >= idle_since:
                return
            num_surplus -= 1
            self._end(conversation)

    def _end(self, conversation: LiveConversation) -> None:
        del self._live[conversation]
        for index in (self._asked, self._replied):
            for mark in conversation.marks:
                if index.get(mark) is conversation:
                    del index[mark]
        conversation.session.end()


def _marks_of(messages: Sequence[Message]) -> Iterator[Mark]:
    """The marks of the conversation up to each message."""
    mark = b""
    for message in messages:
        mark = _next_mark(mark, message)
        yield mark


def _next_mark(before: Mark, message: Message) -> Mark:
    """Equal for messages with equal meaning: clients do not return messages unchanged."""
    meaning = (
        meaning_of(message)
        if message.role == "assistant"
        else (message.role, message.content, message.tool_call_id)
    )
    return hashlib.blake2b(before + msgspec.msgpack.encode(meaning), digest_size=_MARK_BYTES).digest()
