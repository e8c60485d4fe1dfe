"""Continues a conversation after a sampled turn: three rules, each checked on rendered text.

The client returns a turn in another form than it was sampled in, and a template may print it in a third. The
ids of the turn are kept if it is clear what the template prints after it, the *tail*:

    verbatim     the sampled text as content: the rendered text begins with everything given and sampled so far
    difference   the message as it was returned: the text up to and with the turn is a beginning of the whole
                 text, and it says the same as what was sampled; the tail is the difference
    sentinel     the template prints the turn otherwise by now (Qwen3 drops earlier thinking). What it prints
                 behind the turn is still known, from a rendering with a sentinel in its place. Only for
                 history = "append": otherwise the policy sees what the template prints, and the tree branches.

The first rule is the tree's walk; the other two are here.
"""

import json
import secrets
from collections.abc import Sequence

import msgspec

from freerun.chat.echoes import canonical_arguments
from freerun.chat.messages import Message, Tool
from freerun.chat.positions import common_length, first_of
from freerun.chat.rendering import Renderer
from freerun.chat.template_input import TemplateTraits
from freerun.chat.tool_formats import read
from freerun.chat.turns import Conversation, Said, Turn
from freerun.chat.written_calls import parsed_arguments
from freerun.errors import TemplateRefusedError


def own_words(conversation: Conversation, traits: TemplateTraits) -> list[Message | Said]:
    """The policy's turns as they were sampled, except calls that this template only reads in structured form."""
    return [
        item.said
        if isinstance(item, Turn) and (traits.takes_calls_verbatim or not item.message.tool_calls)
        else _message(item)
        for item in conversation.items
    ]


def returned_messages(conversation: Conversation) -> list[Message]:
    """The policy's turns as the messages that clients returned for them."""
    return [_message(item) for item in conversation.items]


def _message(item: Message | Turn) -> Message:
    return item.message if isinstance(item, Turn) else item


def opens_thinking(prompt: str) -> bool:
    """Whether the prompt ends inside thinking that the template opened."""
    return prompt.rstrip().endswith("<think>")


async def tail_by_difference(
    renderer: Renderer, conversation: Conversation, position: int, turn: Turn, *, now: float
) -> str | None:
    """The text after the turn at `position`, if the template prints the turn as a message that says the same."""
    messages, tools = returned_messages(conversation), conversation.tools
    try:
        through = await renderer.render(messages[: position + 1], tools, now=now, add_generation_prompt=False)
        whole = await renderer.render(messages, tools, now=now)
        if not whole.startswith(through):
            return None
        before = await renderer.render(messages[:position], tools, now=now)
    except TemplateRefusedError:
        return None
    start = _start_of_turn(renderer, before, through)
    traits = await renderer.traits()
    end, _ = first_of(traits.closes, through[start:])
    is_thinking = opens_thinking(before) and start == len(before)
    if not _says(renderer, through[start : start + end], turn, tools, is_thinking=is_thinking):
        return None
    return _behind_close(turn, whole[start + end :])


def _start_of_turn(renderer: Renderer, before: str, through: str) -> int:
    """Where the template prints the turn: after its rendering of the prompt, but not inside a special token."""
    start = common_length(before, through)
    while renderer.tokenizer.is_inside_special_token(through, start):
        start -= 1
    return start


def _says(renderer: Renderer, text: str, turn: Turn, tools: Sequence[Tool], *, is_thinking: bool) -> bool:
    """Whether the text says what the turn says."""
    reading = read(renderer.tokenizer.shown(text), renderer.tool_format, tools, is_thinking=is_thinking)
    calls = [(call.name, canonical_arguments(call.arguments)) for call in reading.calls]
    message = turn.message
    return (
        reading.content.strip() == message.content.strip()
        and reading.thinking == message.thinking
        and calls == [(call.name, canonical_arguments(call.arguments)) for call in message.tool_calls]
    )


async def tail_by_sentinel(
    renderer: Renderer, conversation: Conversation, position: int, turn: Turn, *, now: float
) -> str | None:
    """The text after the turn at `position`, however the template prints the turn itself."""
    sentinel = f"Zq{secrets.token_hex(8)}Zq"
    messages, tools = returned_messages(conversation), conversation.tools
    messages[position] = _with_sentinel(turn.message, sentinel)
    try:
        through = await renderer.render(messages[: position + 1], tools, now=now, add_generation_prompt=False)
        whole = await renderer.render(messages, tools, now=now)
    except TemplateRefusedError:
        return None
    closes = (await renderer.traits()).closes
    end_alone, rest = through.rpartition(sentinel)[2], whole.rpartition(sentinel)[2]
    at, close = first_of(closes, rest)
    # Gemma 4 prints the results of calls before the close: they would be missing from the tail.
    ends_alike = end_alone[: first_of(closes, end_alone)[0]] == rest[:at]
    return _behind_close(turn, rest[at:]) if close and ends_alike else None


def _with_sentinel(message: Message, sentinel: str) -> Message:
    """A turn of the same kind that ends with the sentinel."""
    if not message.tool_calls:
        return Message(role="assistant", content=sentinel)
    *others, last = message.tool_calls
    values = parsed_arguments(last.arguments)
    keys = list(values) if isinstance(values, dict) and values else ["sentinel"]
    arguments = json.dumps({**dict.fromkeys(keys, ""), keys[-1]: sentinel})
    marked = msgspec.structs.replace(last, arguments=arguments)
    return Message(role="assistant", tool_calls=(*others, marked))


def _behind_close(turn: Turn, text: str) -> str:
    """The tail: `text` begins with the template's close, which may be the sampled end token."""
    return text.removeprefix(turn.said.close)
