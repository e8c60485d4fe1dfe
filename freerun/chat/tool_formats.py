"""How a policy writes tool calls: a format is chosen from the text of the chat template.

    hermes     <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>          Qwen 2.5 and 3, Hermes
    json       {"name": "add", "parameters": {"a": 1}}                                Llama 3, Mistral, xLAM
    pythonic   [add(a=1), look(where="up")]                                           Llama 3.2 and 4, LFM2
    xml        <tool_call><function=add><parameter=a>1</parameter></function></tool_call>    Qwen3-Coder, Nemotron

The policy's output is untrusted text, so `read` never raises. A malformed call is not a call: it stays in the
content, where the client and the policy see it.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freerun.chat.calls_in_json import find_bare_calls, find_tagged_calls
from freerun.chat.calls_in_python import find_python_calls
from freerun.chat.calls_in_xml import find_xml_calls
from freerun.chat.messages import Tool
from freerun.chat.written_calls import Found, WrittenCall

_THINKING = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_END_OF_THINKING = "</think>"


@dataclass(frozen=True)
class ToolFormat:
    name: str
    find_calls: Callable[[str, Sequence[Tool]], Found]
    """Finds well-formed calls, and the text without them."""
    opening: Callable[[str], str]
    """The beginning of a call of the named tool, or of any tool if the name is empty."""


@dataclass(frozen=True)
class Reading:
    """The policy's text, split into thinking, content and calls."""

    content: str
    thinking: str
    calls: tuple[WrittenCall, ...]


HERMES = ToolFormat(
    "hermes",
    find_tagged_calls,
    lambda name: "<tool_call>\n" + _object_of(name, "arguments"),
)
JSON = ToolFormat("json", find_bare_calls, lambda name: _object_of(name, "parameters"))
PYTHONIC = ToolFormat("pythonic", find_python_calls, lambda name: f"[{name}(" if name else "[")
XML = ToolFormat(
    "xml",
    find_xml_calls,
    lambda name: f"<tool_call>\n<function={name}>\n" if name else "<tool_call>\n<function=",
)

_SIGNS = (
    (XML, ("<function=",)),
    (HERMES, ("<tool_call>",)),
    (PYTHONIC, ("func_name1(", "<|tool_call_start|>")),
    (JSON, ('"parameters"', '"arguments"', "[TOOL_CALLS]", "<|tool_call|>")),
)
"""Signs of each format in a template; the first match wins."""


def _object_of(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{arguments}":' if name else '{"name": "'


def format_for(template: str) -> ToolFormat:
    """The format that a chat template asks for; hermes if it does not mention tools."""
    return next((form for form, signs in _SIGNS if any(sign in template for sign in signs)), HERMES)


def read(text: str, form: ToolFormat, tools: Sequence[Tool], *, is_thinking: bool = False) -> Reading:
    """Split what the policy wrote; without tools it contains no calls.

    `is_thinking` says that the prompt ended in `<think>`, so the text starts with thinking.
    """
    thinking, spoken = _split_thinking(text, is_thinking=is_thinking)
    if not tools:
        return Reading(spoken, thinking, ())
    found = form.find_calls(spoken, tools)
    return Reading(found.content, thinking, found.calls)


def _split_thinking(text: str, *, is_thinking: bool) -> tuple[str, str]:
    """Split off thinking, even if it was cut off."""
    if match := _THINKING.match(text):
        return match[1].strip(), text[match.end() :].lstrip()
    if not is_thinking:
        return "", text
    thinking, _, spoken = text.partition(_END_OF_THINKING)
    return thinking.strip(), spoken.lstrip()
