"""What the dialects share in converting a body to a `ChatCall`: contents as text, tools, stop strings, counts.

The policy reads and writes text. Parts of a content are joined by line breaks; an image, a sound or a file is
refused with the reason, never dropped.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from freerun.chat.messages import AUTO, NONE, REQUIRED, Message, Tool
from freerun.gateway.refusals import RefusedError

MAX_MESSAGES = 10_000
"""A body of maximal size could hold half a million messages; a template would take seconds to render them."""
MAX_REPLIES = 64
MAX_STOPS = 16
MAX_DEPTH = 64
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "reasoning_text", "summary_text"})


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a content, in any dialect."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[ContentPart] | None


class Format(msgspec.Struct, frozen=True):
    """The output format that a client asks for."""

    type: str | None = None


def as_text(content: Content, *, where: str) -> str:
    """Join the parts of a content to one text."""
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part, where=where) for part in content or ())


def _part_text(part: ContentPart, *, where: str) -> str:
    if part.type in _TEXT_TYPES:
        return part.text or ""
    if part.type == "refusal":
        return part.refusal or ""
    raise not_text(part.type, where=where)


def not_text(kind: str, *, where: str) -> RefusedError:
    return RefusedError(
        f'{where}: a part of type "{kind}" is not supported, the policy reads text only; send its content as text',
        param=where,
    )


def function_tool(kind: str, name: str | None, description: str | None, parameters: dict[str, Any] | None) -> Tool:
    """A tool that the client runs itself, the only supported kind."""
    if kind != "function":
        raise RefusedError(
            f'tools: a tool of type "{kind}" is not supported, nothing runs it here; define a function',
            param="tools",
        )
    if not name:
        raise RefusedError("tools: a function has no name", param="tools")
    _check_depth(parameters, where="tools")
    return Tool(name=name, description=description or "", parameters=parameters or {})


def json_text(value: dict[str, Any], *, where: str) -> str:
    """Encode an object from a body as JSON text."""
    _check_depth(value, where=where)
    return msgspec.json.encode(value).decode()


def _check_depth(value: Any, *, where: str) -> None:
    """Refuse values that could be decoded but are too deep to encode again, or for a template."""
    nodes = [value]
    for _ in range(MAX_DEPTH):
        nodes = [child for node in nodes for child in _children(node)]
        if not nodes:
            return
    raise RefusedError(f"{where}: an object is nested more than {MAX_DEPTH} levels deep", param=where)


def _children(node: Any) -> Iterable[Any]:
    match node:
        case dict():
            return node.values()
        case list():
            return node
        case _:
            return ()


def checked_choice(choice: str, tools: Sequence[Tool]) -> str:
    """The tool choice: `auto`, `none`, `required` or the name of one of the tools."""
    if choice in (AUTO, NONE) or (choice == REQUIRED and tools):
        return choice
    names = [tool.name for tool in tools]
    if choice not in names:
        have = ", ".join(names) or "none"
        raise RefusedError(
            f'tool_choice: "{choice}" needs a tool that is not in tools (there: {have})', param="tool_choice"
        )
    return choice


def checked_count(value: int | None, *, name: str, at_most: int | None = None) -> int | None:
    if value is not None and (value < 1 or (at_most is not None and value > at_most)):
        limit = "at least 1" if at_most is None else f"from 1 to {at_most}"
        raise RefusedError(f"{name}: {value} must be {limit}", param=name)
    return value


def checked_stops(stop: str | Collection[str] | None, *, name: str) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS or not all(stops):
        raise RefusedError(f"{name}: must be at most {MAX_STOPS} strings, none of them empty", param=name)
    return stops


def checked_conversation(messages: Sequence[Message], *, name: str) -> tuple[Message, ...]:
    """Check that there are messages, but not too many, and set the tool's name on each tool result."""
    if not messages:
        raise RefusedError(f"{name}: there is no message to answer", param=name)
    if len(messages) > MAX_MESSAGES:
        raise RefusedError(f"{name}: there are {len(messages)} messages, more than {MAX_MESSAGES}", param=name)
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return tuple(
        msgspec.structs.replace(message, name=names.get(message.tool_call_id, ""))
        if message.role == "tool" and not message.name
        else message
        for message in messages
    )


def asked_settings(**settings: float | None) -> dict[str, float]:
    """The sampling settings present in a body."""
    return {name: value for name, value in settings.items() if value is not None}


def refuse_json(form: Format | None, *, param: str) -> None:
    """Refuse JSON formats: there is no grammar engine to enforce a schema."""
    if form is not None and form.type not in (None, "text"):
        raise RefusedError(
            f'{param}: "{form.type}" is not supported, replies are sampled without a grammar; ask for JSON in the '
            "messages, or define a tool",
            param=param,
        )


def refuse_top_logprobs(num: int | None) -> None:
    if num:
        raise RefusedError(
            f"top_logprobs: {num} is not supported, only the logprobs of sampled tokens are known; leave it out",
            param="top_logprobs",
        )
