"""Tool calls as a Python list of calls, `[add(a=1), look(where="up")]`: parsed, never evaluated; literals only."""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from freerun.chat.messages import Tool
from freerun.chat.written_calls import Found, WrittenCall, is_plain

_MARKED = re.compile(r"<\|(?:tool_call|python)_start\|>(.*?)(?:<\|(?:tool_call|python)_end\|>|\Z)", re.DOTALL)
"""Markers that LFM2 and Llama 4 may write around their calls."""
_MAX_CHARACTERS = 100_000
_MAX_BRACKETS = 100
"""Limit on nested brackets: Python's parser recurses."""
_JSON_NAMES = {"true": True, "false": False, "null": None}


def find_python_calls(text: str, tools: Sequence[Tool]) -> Found:
    """Find the calls of a marked list, or of a text that is nothing but a list."""
    if match := _MARKED.search(text):
        content, written = text[: match.start()] + text[match.end() :], match[1]
    else:
        content, written = "", text
    calls = _read_list(written.strip())
    return Found(content.strip(), calls) if calls else Found(text, ())


def _read_list(text: str) -> tuple[WrittenCall, ...]:
    """The calls of the list; empty if any part of it is malformed."""
    if not (text.startswith("[") and text.endswith("]")) or not _is_shallow(text):
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes
            expression = ast.parse(text, mode="eval").body
        if not isinstance(expression, ast.List):
            return ()
        return tuple(map(_read_call, expression.elts))
    # Not Python, not a literal, an integer of 10,000 digits, a set, infinity, or too many operators.
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return ()


def _is_shallow(text: str) -> bool:
    depth = deepest = 0
    for character in text[:_MAX_CHARACTERS]:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest <= _MAX_BRACKETS and len(text) <= _MAX_CHARACTERS


def _read_call(node: ast.expr) -> WrittenCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call by keywords")
    values = {_keyword(keyword): _value(keyword.value) for keyword in node.keywords}
    arguments = json.dumps(values, ensure_ascii=False, allow_nan=False)
    if not is_plain(json.loads(arguments)):
        raise ValueError("arguments that others cannot read")
    return WrittenCall(_name(node.func), arguments)


def _keyword(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("** is not a literal")
    return keyword.arg


def _name(node: ast.expr) -> str:
    """The dotted name of a call, such as `add` or `files.read`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_name(value)}.{name}"
    raise ValueError("not a name")


def _value(node: ast.expr) -> Any:
    """The value of a literal; JSON's constants are accepted too."""
    match node:
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    return ast.literal_eval(node)


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str(key)):
            return key
    raise ValueError("JSON has only texts as keys")
