"""OpenAI's responses: converts items to a conversation, and a reply to output items or their events.

The items of one assistant turn (reasoning, message, function calls) correspond to one message here.
`previous_response_id` restores the messages up to that response, without its instructions.

Ignored: `reasoning`, `include` except for logprobs, `strict`, `parallel_tool_calls`, `max_tool_calls`,
`truncation`, `metadata` and other settings that have no effect here.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from freerun.chat.messages import AUTO, ChatCall, Message, Reply, Role, ToolCall
from freerun.gateway import content
from freerun.gateway.chat_completions import logprob_entry
from freerun.gateway.content import Content, Format, as_text
from freerun.gateway.dialect import Asked, Dialect, Recall, data_event, decode
from freerun.gateway.refusals import RefusedError, openai_error

RESPONSE_PREFIX = "resp_"
_LOGPROBS = "message.output_text.logprobs"
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}


class _Item(msgspec.Struct, frozen=True):
    type: str | None = "message"
    role: str | None = None
    content: Content = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None


class _Tool(msgspec.Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str = ""


class _Text(msgspec.Struct, frozen=True):
    format: Format | None = None


class _Body(msgspec.Struct, frozen=True):
    model: str
    input: str | list[_Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | _Choice | None = None
    max_output_tokens: int | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    text: _Text | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None


_decoder = msgspec.json.Decoder(_Body)


def _read(body: bytes, recall: Recall) -> Asked:
    asked = decode(_decoder, body)
    _refuse_unsupported(asked)
    instructions = [Message(role="system", content=asked.instructions)] if asked.instructions else []
    earlier = recall(asked.previous_response_id) if asked.previous_response_id else ()
    tools = tuple(
        content.function_tool(tool.type, tool.name, tool.description, tool.parameters)
        for tool in asked.tools or ()
    )
    call = ChatCall(
        messages=content.checked_conversation([*instructions, *earlier, *_messages(asked.input)], name="input"),
        tools=tools,
        tool_choice=content.checked_choice(_choice(asked.tool_choice), tools),
        max_tokens=content.checked_count(asked.max_output_tokens, name="max_output_tokens"),
        wants_logprobs=_LOGPROBS in (asked.include or ()),
    )
    return Asked(
        model=asked.model,
        call=call,
        is_streamed=bool(asked.stream),
        settings=content.asked_settings(temperature=asked.temperature, top_p=asked.top_p),
        num_passing=len(instructions),
        is_remembered=asked.store is not False,
        echo=_echo(asked),
    )


def _refuse_unsupported(asked: _Body) -> None:
    content.refuse_top_logprobs(asked.top_logprobs)
    content.refuse_json(asked.text.format if asked.text else None, param="text.format")
    if asked.background:
        raise RefusedError("background: not supported; wait for the response, or stream it", param="background")
    if asked.conversation is not None:
        raise RefusedError("conversation: not supported; send previous_response_id", param="conversation")
    if asked.prompt is not None:
        raise RefusedError("prompt: no prompts are stored here; send input", param="prompt")


def _echo(asked: _Body) -> dict[str, Any]:
    """What a response repeats of its request, because clients read some of it."""
    choice = asked.tool_choice
    return {
        "instructions": asked.instructions,
        "previous_response_id": asked.previous_response_id,
        "tools": asked.tools or [],
        "tool_choice": AUTO if choice is None else choice,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "text": {"format": {"type": "text"}},
    }


def _choice(choice: str | _Choice | None) -> str:
    if choice is None:
        return AUTO
    if isinstance(choice, str):
        return choice
    if choice.type != "function":
        raise RefusedError(
            f'tool_choice: type "{choice.type}" is not supported; name a function', param="tool_choice"
        )
    return choice.name


def _messages(items: str | list[_Item]) -> list[Message]:
    """The conversation; items of one assistant turn are merged into one message."""
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    messages: list[Message] = []
    for message in map(_message, items):
        if messages and _continues(messages[-1], message):
            messages[-1] = _joined(messages[-1], message)
        else:
            messages.append(message)
    return messages


def _message(item: _Item) -> Message:
    match item.type:
        case "message" | None if item.role == "assistant":
            return Message(role="assistant", content=as_text(item.content, where="input"))
        case "message" | None if item.role in _ROLES:
            return Message(role=_ROLES[item.role], content=as_text(item.content, where="input"))
        case "message" | None:
            raise RefusedError(f'input: role "{item.role}" is not supported', param="input")
        case "reasoning":
            return Message(role="assistant", thinking=as_text(item.content, where="input"))
        case "function_call":
            if not item.call_id or not item.name:
                raise RefusedError("input: a function_call needs call_id and name", param="input")
            call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments or "")
            return Message(role="assistant", tool_calls=(call,))
        case "function_call_output":
            result = as_text(item.output, where="input")
            return Message(role="tool", content=result, tool_call_id=item.call_id or "")
        case _:
            raise RefusedError(
                f'input: an item of type "{item.type}" is not supported; send messages, reasoning, function calls '
                "and their outputs",
                param="input",
            )


def _continues(turn: Message, part: Message) -> bool:
    """Whether a part belongs to the turn: reasoning, then text, then calls; anything else begins another turn."""
    if turn.role != "assistant" or part.role != "assistant" or part.thinking:
        return False
    return bool(part.tool_calls) or not (turn.content or turn.tool_calls)


def _joined(turn: Message, part: Message) -> Message:
    return Message(
        role="assistant",
        content=turn.content + part.content,
        tool_calls=turn.tool_calls + part.tool_calls,
        thinking=turn.thinking,
    )


def _answer(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
    [reply] = replies
    return _response(asked, reply, status=_status(reply), output=_output(asked, reply), usage=_usage(reply))


def _response(asked: Asked, reply: Reply, *, status: str, output: list[Any], usage: Any) -> dict[str, Any]:
    return {
        "id": RESPONSE_PREFIX + reply.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": asked.model,
        "output": output,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "usage": usage,
        **asked.echo,
    }


def _status(reply: Reply) -> str:
    return "incomplete" if reply.finish_reason == "length" else "completed"


def _output(asked: Asked, reply: Reply) -> list[dict[str, Any]]:
    message, status = reply.message, _status(reply)
    items: list[dict[str, Any]] = []
    if message.thinking:
        thought = {"type": "reasoning_text", "text": message.thinking}
        items.append({"type": "reasoning", "id": f"rs_{reply.id}", "summary": [], "content": [thought]})
    if message.content or not message.tool_calls:
        items.append(
            {
                "type": "message",
                "id": f"msg_{reply.id}",
                "role": "assistant",
                "status": status,
                "content": [_text_part(asked, reply)],
            }
        )
    for index, call in enumerate(message.tool_calls):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{reply.id}_{index}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
        )
    return items


def _text_part(asked: Asked, reply: Reply) -> dict[str, Any]:
    logprobs = [*map(logprob_entry, reply.logprobs)] if asked.call.wants_logprobs else []
    return {"type": "output_text", "text": reply.message.content, "annotations": [], "logprobs": logprobs}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.num_prompt_tokens + reply.num_completion_tokens,
    }


def _events(asked: Asked, replies: Sequence[Reply]) -> Iterator[bytes]:
    """The events of a response: every item is added, filled by one delta and finished."""
    [reply] = replies
    numbers = count()

    def event(kind: str, **fields: Any) -> bytes:
        return data_event({"type": kind, "sequence_number": next(numbers), **fields}, event=kind)

    begun = _response(asked, reply, status="in_progress", output=[], usage=None)
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(_output(asked, reply)):
        yield event("response.output_item.added", output_index=index, item=_emptied(item))
        for kind, fields in _filled(item):
            yield event(kind, item_id=item["id"], output_index=index, **fields)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{_status(reply)}", response=_answer(asked, replies))


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is before its first delta."""
    empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    return {**item, **empty, "status": "in_progress"}


def _filled(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events that fill in an item."""
    if item["type"] == "function_call":
        arguments = item["arguments"]
        yield "response.function_call_arguments.delta", {"delta": arguments}
        yield "response.function_call_arguments.done", {"name": item["name"], "arguments": arguments}
        return
    [part] = item["content"]
    text, at = part["text"], {"content_index": 0}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    if item["type"] == "reasoning":
        yield "response.reasoning_text.delta", {**at, "delta": text}
        yield "response.reasoning_text.done", {**at, "text": text}
    else:
        yield "response.output_text.delta", {**at, "delta": text, "logprobs": part["logprobs"]}
        yield "response.output_text.done", {**at, "text": text, "logprobs": part["logprobs"]}
    yield "response.content_part.done", {**at, "part": part}


def _error_event(refusal: RefusedError) -> bytes:
    """An error event with an `error` object as in a body, which OpenAI clients look for in a stream."""
    return data_event({"type": "error", **openai_error(refusal)}, event="error")


RESPONSES = Dialect(read=_read, answer=_answer, events=_events, error=openai_error, error_event=_error_event)
