"""Messages and tools in the form that chat templates read: nested dictionaries, as `transformers` passes them.

Templates differ in what they read. `TemplateTraits` describes this one; `probing.py` finds it out. All text
that the policy did not write goes through `as_text`, so that the name of a special token in it is text and not
control.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from freerun.chat.messages import Message, Tool
from freerun.chat.turns import Said
from freerun.chat.written_calls import parsed_arguments
from freerun.data.template_process import packed_integer

AsText = Callable[[str], str]
_NO_PARAMETERS = {"type": "object", "properties": {}}
"""Templates expect `properties` to be present."""


@dataclass(frozen=True)
class TemplateTraits:
    """What a template expects and what it prints."""

    arguments_as_text: bool = False
    """Whether it reads arguments of calls as JSON text; most templates want an object."""
    thinking_key: str = ""
    """The field it reads thinking from; empty if it reads none."""
    takes_calls_verbatim: bool = True
    """Whether a call may be plain content. Other templates then print the results of calls differently."""
    shows_tools: bool = True
    """Whether it shows tools to the policy."""
    closes: tuple[str, ...] = ()
    """Special tokens that end the assistant's turn."""


def template_messages(
    items: Sequence[Message | Said], traits: TemplateTraits, as_text: AsText
) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    """Names of called tools, by the id of the call."""
    fields: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Said):
            fields.append({"role": "assistant", "content": item.text})
            continue
        names |= {call.id: call.name for call in item.tool_calls}
        fields.append(_fields_of(item, traits, as_text, names.get(item.tool_call_id, "")))
    return fields


def _fields_of(message: Message, traits: TemplateTraits, as_text: AsText, called: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": as_text(message.content)}
    if message.role == "tool":
        fields["tool_call_id"] = as_text(message.tool_call_id)
        fields["name"] = as_text(message.name or called)
    if message.thinking and traits.thinking_key:
        fields[traits.thinking_key] = as_text(message.thinking)
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": as_text(call.id),
                "type": "function",
                "function": {
                    "name": as_text(call.name),
                    "arguments": _as_text_throughout(
                        call.arguments if traits.arguments_as_text else parsed_arguments(call.arguments), as_text
                    ),
                },
            }
            for call in message.tool_calls
        ]
    return fields


def template_tools(tools: Sequence[Tool], as_text: AsText) -> list[dict[str, Any]]:
    """Schemas keep the order of their keys, because they become text of the prompt."""
    return [
        {
            "type": "function",
            "function": _as_text_throughout(
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters or _NO_PARAMETERS,
                },
                as_text,
            ),
        }
        for tool in tools
    ]


def _as_text_throughout(value: Any, as_text: AsText) -> Any:
    match value:
        case str():
            return as_text(value)
        case int():
            return packed_integer(value)
        case list() | tuple():
            return [_as_text_throughout(item, as_text) for item in value]
        case dict():
            return {as_text(str(key)): _as_text_throughout(item, as_text) for key, item in value.items()}
        case _:
            return value
