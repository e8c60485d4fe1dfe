"""Tool calls as models write them, in each of the formats; the package itself only reads them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from freerun.chat.messages import Tool

Calls = Sequence[tuple[str, Mapping[str, Any]]]


def hermes(calls: Calls) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': values}, ensure_ascii=False)}\n</tool_call>"
        for name, values in calls
    )


def llama_json(calls: Calls) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": values}) for name, values in calls)


def pythonic(calls: Calls) -> str:
    return (
        "["
        + ", ".join(f"{name}({', '.join(f'{k}={v!r}' for k, v in values.items())})" for name, values in calls)
        + "]"
    )


def xml(calls: Calls) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in values.items())
        + "</function>\n</tool_call>"
        for name, values in calls
    )


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tool_for(name: str, values: Mapping[str, Any]) -> Tool:
    """A tool whose schema says what is text and what is not."""
    types = {key: {"type": "string" if isinstance(value, str) else "object"} for key, value in values.items()}
    return Tool(name=name, parameters={"type": "object", "properties": types})
