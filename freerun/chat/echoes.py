"""Recognises which messages of a client are turns of the session.

Clients do not return messages unchanged: they re-encode the JSON of arguments, drop empty contents and
thinking, and strip white space. A message is recognised if it means the same: equal ids, names and values of
its calls, equal content. An unrecognised message is treated like any other. So recognition affects how many
sequences a session becomes, never whether they are correct.
"""

import json
from collections.abc import Mapping, Sequence

from freerun.chat.messages import ChatCall, Message
from freerun.chat.turns import Conversation, Turn
from freerun.chat.written_calls import parsed_arguments

Meaning = tuple[str, tuple[tuple[str, str, str], ...]]


def meaning_of(message: Message) -> Meaning:
    """The meaning of an assistant's message, independent of how it is written."""
    calls = tuple((call.id, call.name, canonical_arguments(call.arguments)) for call in message.tool_calls)
    return message.content.strip(), calls


def canonical_arguments(arguments: str) -> str:
    """A text that is equal for equal values."""
    return json.dumps(parsed_arguments(arguments), sort_keys=True)


def recognise(call: ChatCall, turns: Mapping[Meaning, Sequence[Turn]]) -> Conversation:
    """The conversation of a call, with recognised turns; `turns` are the session's, oldest first."""
    items: list[Message | Turn] = []
    last_own: int | None = None
    for position, message in enumerate(call.messages):
        candidates = _turns_that_say(message, turns)
        continued = [turn for turn in candidates if _replies_to(turn, call, items)]
        if continued:
            last_own = position
        known = continued or candidates
        items.append(known[-1] if known else message)
    return Conversation(call.tools, tuple(items), last_own)


def _turns_that_say(message: Message, turns: Mapping[Meaning, Sequence[Turn]]) -> list[Turn]:
    if message.role != "assistant":
        return []
    thinking = message.thinking.strip()
    return [turn for turn in turns.get(meaning_of(message), ()) if thinking in ("", turn.message.thinking)]


def _replies_to(turn: Turn, call: ChatCall, before: Sequence[Message | Turn]) -> bool:
    """Whether the client has changed nothing in the messages that the turn replied to."""
    return turn.conversation.items == tuple(before) and turn.conversation.tools == call.tools
