"""What all these programs have in common: the question, read as `rollout.command` sends it, and one tool."""

import json
import sys
from typing import Any

MODEL = "policy"

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "description": "Add two numbers.", "parameters": PARAMETERS},
}
"""In the form of OpenAI's chat completions."""


def question() -> str:
    text: str = json.load(sys.stdin)["text"]
    return text


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b
