"""OpenAI's chat completions: converts a body to a `ChatCall`, and replies to a completion or its chunks.

Ignored: `seed`, `strict`, `parallel_tool_calls`, `metadata`, `store`, `user` and other settings that have no
effect here. The sampling settings are ignored too, but reported (`Asked.settings`).
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from freerun.chat.messages import AUTO, ChatCall, Message, Reply, Role, TokenLogprob, Tool, ToolCall
from freerun.gateway import content
from freerun.gateway.content import Content, Format, as_text
from freerun.gateway.dialect import Asked, Dialect, Recall, data_event, decode
from freerun.gateway.refusals import RefusedError, openai_error

COMPLETION_PREFIX = "chatcmpl-"
_DONE = b"data: [DONE]\n\n"
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any] = ""


class _ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: _Function
    type: str | None = "function"


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: Content = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class _FunctionTool(msgspec.Struct, frozen=True):
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str = "function"
    function: _FunctionTool = _FunctionTool()


class _NamedTool(msgspec.Struct, frozen=True):
    name: str = ""


class _Choice(msgspec.Struct, frozen=True):
    type: str
    function: _NamedTool = _NamedTool()


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Body(msgspec.Struct, frozen=True):
    model: str
    messages: list[_Message]
    tools: list[_Tool] | None = None
    tool_choice: str | _Choice | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: Format | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    modalities: list[str] | None = None
    functions: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


_decoder = msgspec.json.Decoder(_Body)


def _read(body: bytes, _: Recall) -> Asked:
    asked = decode(_decoder, body)
    _refuse_unsupported(asked)
    max_tokens = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    tools = tuple(map(_tool, asked.tools or ()))
    call = ChatCall(
        messages=content.checked_conversation([*map(_message, asked.messages)], name="messages"),
        tools=tools,
        tool_choice=content.checked_choice(_choice(asked.tool_choice), tools),
        max_tokens=content.checked_count(max_tokens, name="max_tokens"),
        stop=content.checked_stops(asked.stop, name="stop"),
        num_replies=content.checked_count(asked.n, name="n", at_most=content.MAX_REPLIES) or 1,
        wants_logprobs=bool(asked.logprobs),
    )
    return Asked(
        model=asked.model,
        call=call,
        is_streamed=bool(asked.stream),
        sends_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        settings=content.asked_settings(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            min_p=asked.min_p,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            repetition_penalty=asked.repetition_penalty,
        ),
    )


def _refuse_unsupported(asked: _Body) -> None:
    content.refuse_top_logprobs(asked.top_logprobs)
    content.refuse_json(asked.response_format, param="response_format")
    if asked.functions:
        raise RefusedError("functions: the old form is not supported; send tools", param="functions")
    if set(asked.modalities or ()) - {"text"}:
        raise RefusedError("modalities: only text is supported; leave it out", param="modalities")


def _message(message: _Message) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise RefusedError(f'messages: role "{message.role}" is none of {known}', param="messages")
    text = as_text(message.content, where="messages")
    if role == "assistant":
        return Message(
            role=role,
            content=text or message.refusal or "",
            tool_calls=tuple(map(_tool_call, message.tool_calls or ())),
            thinking=message.reasoning_content or "",
        )
    if role == "tool":
        return Message(role=role, content=text, tool_call_id=message.tool_call_id or "", name=message.name or "")
    return Message(role=role, content=text)


def _tool_call(call: _ToolCall) -> ToolCall:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else content.json_text(arguments, where="messages")
    return ToolCall(id=call.id, name=call.function.name, arguments=text)


def _tool(tool: _Tool) -> Tool:
    function = tool.function
    return content.function_tool(tool.type, function.name, function.description, function.parameters)


def _choice(choice: str | _Choice | None) -> str:
    if choice is None:
        return AUTO
    if isinstance(choice, str):
        return choice
    if choice.type != "function":
        raise RefusedError(
            f'tool_choice: type "{choice.type}" is not supported; name a function', param="tool_choice"
        )
    return choice.function.name


def _answer(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "refusal": None, **_said(reply)},
            "logprobs": _logprobs(asked, reply),
            "finish_reason": reply.finish_reason,
        }
        for index, reply in enumerate(replies)
    ]
    return {**_head(asked, replies, "chat.completion"), "choices": choices, "usage": _usage(replies)}


def _events(asked: Asked, replies: Sequence[Reply]) -> Iterator[bytes]:
    """The chunks of replies: role, one delta, finish; then the usage if the client asked for it."""
    head = _head(asked, replies, "chat.completion.chunk")

    def chunk(index: int, delta: dict[str, Any], **rest: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **rest}
        return data_event({**head, "choices": [choice]})

    for index, reply in enumerate(replies):
        yield chunk(index, {"role": "assistant", "content": ""})
        yield chunk(index, _delta(reply), logprobs=_logprobs(asked, reply))
        yield chunk(index, {}, finish_reason=reply.finish_reason)
    if asked.sends_usage:
        yield data_event({**head, "choices": [], "usage": _usage(replies)})
    yield _DONE


def _head(asked: Asked, replies: Sequence[Reply], kind: str) -> dict[str, Any]:
    return {
        "id": COMPLETION_PREFIX + replies[0].id,
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
    }


def _said(reply: Reply) -> dict[str, Any]:
    message = reply.message
    said: dict[str, Any] = {"content": message.content or (None if message.tool_calls else "")}
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.thinking:
        said["reasoning_content"] = message.thinking
    return said


def _delta(reply: Reply) -> dict[str, Any]:
    said = _said(reply)
    for index, call in enumerate(said.get("tool_calls", ())):
        call["index"] = index
    return said


def _logprobs(asked: Asked, reply: Reply) -> dict[str, Any] | None:
    if not asked.call.wants_logprobs:
        return None
    return {"content": [*map(logprob_entry, reply.logprobs)], "refusal": None}


def logprob_entry(token: TokenLogprob) -> dict[str, Any]:
    """A sampled token in OpenAI's format."""
    return {"token": token.token, "logprob": token.logprob, "bytes": [*token.bytes], "top_logprobs": []}


def _usage(replies: Sequence[Reply]) -> dict[str, Any]:
    """Token counts; the prompt counts once because all replies share it."""
    num_prompt = replies[0].num_prompt_tokens
    num_completion = sum(reply.num_completion_tokens for reply in replies)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": replies[0].num_cached_tokens},
    }


def _error_event(refusal: RefusedError) -> bytes:
    return data_event(openai_error(refusal)) + _DONE


CHAT_COMPLETIONS = Dialect(
    read=_read, answer=_answer, events=_events, error=openai_error, error_event=_error_event
)
