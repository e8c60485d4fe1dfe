"""Anthropic's messages: converts blocks to a conversation, and a reply to blocks or to their events.

In this dialect results of tools are blocks of a user's message; internally they are separate messages. Its
`input` is an object; internally it is JSON text: arguments that are not a JSON object are sent as
`{"arguments": TEXT}`. Thinking is sent only to a client that asked for it, because many take the first block
for the answer.

Ignored: `metadata`, `cache_control`, `is_error`, `disable_parallel_tool_use`, efforts and budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from freerun.chat.messages import AUTO, NONE, REQUIRED, ChatCall, Message, Reply, Tool, ToolCall
from freerun.gateway import content
from freerun.gateway.content import Format, not_text
from freerun.gateway.dialect import Asked, Dialect, Recall, data_event, decode
from freerun.gateway.refusals import RefusedError, anthropic_error

MESSAGE_PREFIX = "msg_"


class _Block(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[_Block] | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct, frozen=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str = ""


class _Thinking(msgspec.Struct, frozen=True):
    type: str


class _OutputConfig(msgspec.Struct, frozen=True):
    format: Format | None = None


class _Body(msgspec.Struct, frozen=True):
    model: str
    messages: list[_Message]
    max_tokens: int | None = None
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: Format | None = None
    mcp_servers: list[Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


_decoder = msgspec.json.Decoder(_Body)


def _read(body: bytes, _: Recall) -> Asked:
    asked = decode(_decoder, body)
    _refuse_unsupported(asked)
    system = _text(asked.system or "", where="system")
    messages = [Message(role="system", content=system)] if system else []
    for message in asked.messages:
        messages += _messages(message)
    tools = tuple(map(_tool, asked.tools or ()))
    call = ChatCall(
        messages=content.checked_conversation(messages, name="messages"),
        tools=tools,
        tool_choice=content.checked_choice(_choice(asked.tool_choice), tools),
        max_tokens=content.checked_count(asked.max_tokens, name="max_tokens"),
        stop=content.checked_stops(asked.stop_sequences, name="stop_sequences"),
    )
    return Asked(
        model=asked.model,
        call=call,
        is_streamed=bool(asked.stream),
        shows_thinking=asked.thinking is not None and asked.thinking.type != "disabled",
        settings=content.asked_settings(temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k),
    )


def _refuse_unsupported(asked: _Body) -> None:
    if asked.output_config:
        content.refuse_json(asked.output_config.format, param="output_config.format")
    content.refuse_json(asked.output_format, param="output_format")
    if asked.mcp_servers:
        raise RefusedError("mcp_servers: nothing calls them here; define tools", param="mcp_servers")


def _messages(message: _Message) -> list[Message]:
    blocks = [_Block("text", text=message.content)] if isinstance(message.content, str) else message.content
    match message.role:
        case "user":
            return _of_user(blocks)
        case "assistant":
            return [_of_assistant(blocks)]
        case "system":
            return [Message(role="system", content=_text(blocks, where="messages"))]
        case _:
            raise RefusedError(
                f'messages: role "{message.role}" is none of user, assistant, system', param="messages"
            )


def _of_user(blocks: Sequence[_Block]) -> list[Message]:
    """Results of tools and the user's text, in order."""
    messages: list[Message] = []
    words: list[_Block] = []
    for block in blocks:
        if block.type != "tool_result":
            words.append(block)
            continue
        if words:
            messages.append(Message(role="user", content=_text(words, where="messages")))
            words = []
        result = _text(block.content or "", where="messages")
        messages.append(Message(role="tool", content=result, tool_call_id=block.tool_use_id or ""))
    if words or not messages:
        messages.append(Message(role="user", content=_text(words, where="messages")))
    return messages


def _of_assistant(blocks: Sequence[_Block]) -> Message:
    calls = [block for block in blocks if block.type == "tool_use"]
    thoughts = [block.thinking or "" for block in blocks if block.type == "thinking"]
    apart = ("tool_use", "thinking", "redacted_thinking")
    return Message(
        role="assistant",
        content=_text([block for block in blocks if block.type not in apart], where="messages"),
        tool_calls=tuple(map(_tool_call, calls)),
        thinking="\n".join(thoughts),
    )


def _tool_call(block: _Block) -> ToolCall:
    if not block.id or not block.name:
        raise RefusedError("messages: a tool_use needs id and name", param="messages")
    arguments = content.json_text(block.input or {}, where="messages")
    return ToolCall(id=block.id, name=block.name, arguments=arguments)


def _text(blocks: str | Sequence[_Block], *, where: str) -> str:
    if isinstance(blocks, str):
        return blocks
    for block in blocks:
        if block.type != "text":
            raise not_text(block.type, where=where)
    return "\n".join(block.text or "" for block in blocks)


def _tool(tool: _Tool) -> Tool:
    kind = "function" if tool.type in (None, "custom") else tool.type
    return content.function_tool(kind, tool.name, tool.description, tool.input_schema)


def _choice(choice: _Choice | None) -> str:
    match choice and choice.type:
        case None | "auto":
            return AUTO
        case "any":
            return REQUIRED
        case "none":
            return NONE
        case "tool":
            assert choice is not None
            return choice.name
        case kind:
            raise RefusedError(f'tool_choice: type "{kind}" is none of auto, any, tool, none', param="tool_choice")


def _answer(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
    [reply] = replies
    reason, stop = _stop_reason(asked, reply)
    return {
        **_head(asked, reply),
        "content": _blocks(asked, reply),
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": _usage(reply),
    }


def _head(asked: Asked, reply: Reply) -> dict[str, Any]:
    return {"id": MESSAGE_PREFIX + reply.id, "type": "message", "role": "assistant", "model": asked.model}


def _blocks(asked: Asked, reply: Reply) -> list[dict[str, Any]]:
    message = reply.message
    blocks: list[dict[str, Any]] = []
    if message.thinking and asked.shows_thinking:
        blocks.append({"type": "thinking", "thinking": message.thinking, "signature": ""})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content, "citations": None})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object, even if the policy did not write one."""
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _stop_reason(asked: Asked, reply: Reply) -> tuple[str, str | None]:
    if reply.finish_reason == "length":
        return "max_tokens", None
    if reply.finish_reason == "tool_calls":
        return "tool_use", None
    found = [(reply.sampled_text.find(stop), stop) for stop in asked.call.stop if stop in reply.sampled_text]
    return ("stop_sequence", min(found)[1]) if found else ("end_turn", None)


def _usage(reply: Reply) -> dict[str, int]:
    """`input_tokens` counts the tokens that were not cached."""
    return {
        "input_tokens": reply.num_prompt_tokens - reply.num_cached_tokens,
        "cache_read_input_tokens": reply.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": reply.num_completion_tokens,
    }


def _events(asked: Asked, replies: Sequence[Reply]) -> Iterator[bytes]:
    """The events of a reply: `message_start`, one delta per block, `message_delta`, `message_stop`."""
    [reply] = replies
    usage = _usage(reply)

    def event(kind: str, **fields: Any) -> bytes:
        return data_event({"type": kind, **fields}, event=kind)

    begun: dict[str, Any] = {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    yield event("message_start", message={**_head(asked, reply), **begun})
    for index, block in enumerate(_blocks(asked, reply)):
        empty, delta = _split(block)
        yield event("content_block_start", index=index, content_block=empty)
        yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason, stop = _stop_reason(asked, reply)
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": stop}, usage=usage)
    yield event("message_stop")


def _split(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block without its content, and the delta with all of its content."""
    match block["type"]:
        case "tool_use":
            text = msgspec.json.encode(block["input"]).decode()
            return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": text}
        case "thinking":
            return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
        case _:
            return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}


def _error_event(refusal: RefusedError) -> bytes:
    return data_event(anthropic_error(refusal), event="error")


ANTHROPIC = Dialect(read=_read, answer=_answer, events=_events, error=anthropic_error, error_event=_error_event)
