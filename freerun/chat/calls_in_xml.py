"""Tool calls in the tags of Qwen3-Coder. Values are bare text: the tool's schema says which ones are JSON."""

import json
import re
from collections.abc import Sequence
from typing import Any

from freerun.chat.messages import Tool
from freerun.chat.written_calls import STRICT_JSON, Found, WrittenCall, is_plain

_CALL = re.compile(r"<tool_call>\s*<function=([^>\n]+)>(.*?)</function>\s*(?:</tool_call>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_SPACE = re.compile(r"\s*")


def find_xml_calls(text: str, tools: Sequence[Tool]) -> Found:
    """Find every `<tool_call>` whose parameters are all well-formed."""
    types = {tool.name: _types(tool) for tool in tools}
    kept: list[str] = []
    calls: list[WrittenCall] = []
    at = 0
    for match in _CALL.finditer(text):
        name = match[1].strip()
        arguments = _read_parameters(match[2], types.get(name, {}))
        if name and arguments is not None:
            kept.append(text[at : match.start()])
            calls.append(WrittenCall(name, arguments))
            at = match.end()
    content = "".join([*kept, text[at:]])
    return Found(content.strip(), tuple(calls)) if calls else Found(text, ())


def _read_parameters(text: str, types: dict[str, Any]) -> str | None:
    """The arguments as JSON; None if the text contains anything but parameters."""
    values: dict[str, Any] = {}
    at = 0
    while match := _PARAMETER.match(text, at):
        values[match[1].strip()] = _value(match[2], types.get(match[1].strip()))
        at = match.end()
    if _SPACE.fullmatch(text, at) is None or not is_plain(values):
        return None
    return json.dumps(values, ensure_ascii=False)


def _types(tool: Tool) -> dict[str, Any]:
    """Types of the parameters by name; the schema comes from a client."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: schema.get("type") for name, schema in properties.items() if isinstance(schema, dict)}


def _value(text: str, type_: Any) -> Any:
    """The value as JSON if the schema asks for anything but text and the value is JSON; else as text."""
    if type_ is None or type_ == "string":
        return text
    try:
        value = STRICT_JSON.decode(text)
    except (ValueError, RecursionError):
        return text
    return value if is_plain(value) else text
