"""Tool calls as JSON objects: between tags (Hermes, Qwen), or as the whole text (Llama 3 and others)."""

import re
from collections.abc import Sequence

from freerun.chat.messages import Tool
from freerun.chat.written_calls import STRICT_JSON, Found, WrittenCall, is_plain

_TAG, _END_TAG = "<tool_call>", "</tool_call>"
_MARKERS = ("<|python_tag|>", "[TOOL_CALLS]", "<|tool_call|>", "functools")
"""Markers that Llama 3, Mistral, Granite and Phi-4 may write before their calls."""
_SPACE = re.compile(r"[ \t\n\r]*")
_SEPARATORS = re.compile(r"[ \t\n\r;,]*")


def find_tagged_calls(text: str, tools: Sequence[Tool]) -> Found:
    """Find every `<tool_call>` with a well-formed object; the last one may lack its end tag."""
    kept: list[str] = []
    calls: list[WrittenCall] = []
    at = 0
    while (tag := text.find(_TAG, at)) >= 0:
        kept.append(text[at:tag])
        start = _skip(_SPACE, text, tag + len(_TAG))
        read = _read_call(text, start)
        end = None if read is None else _end_of_tag(text, read[1])
        if read is None or end is None:
            kept.append(_TAG)
            at = tag + len(_TAG)
        else:
            calls.append(read[0])
            at = end
    content = "".join([*kept, text[at:]])
    return Found(content.strip(), tuple(calls)) if calls else Found(text, ())


def _end_of_tag(text: str, at: int) -> int | None:
    """The position behind the end tag, or the end of the text; None if there is something else."""
    at = _skip(_SPACE, text, at)
    if text.startswith(_END_TAG, at):
        return at + len(_END_TAG)
    return at if at == len(text) else None


def find_bare_calls(text: str, tools: Sequence[Tool]) -> Found:
    """Read a text that is only one call, several, or a list of calls, maybe after a marker; else find none."""
    before, start = _after_marker(text)
    is_list = text.startswith("[", start)
    at = _skip(_SPACE, text, start + 1) if is_list else start
    calls: list[WrittenCall] = []
    while (read := _read_call(text, at)) is not None:
        calls.append(read[0])
        at = _skip(_SEPARATORS, text, read[1])
    if is_list and text.startswith("]", at):
        at = _skip(_SPACE, text, at + 1)
    return Found(before.strip(), tuple(calls)) if calls and at == len(text) else Found(text, ())


def _after_marker(text: str) -> tuple[str, int]:
    """The text before the marker, and the position after it."""
    found = [(text.find(marker), marker) for marker in _MARKERS if marker in text]
    if not found:
        return "", _skip(_SPACE, text, 0)
    at, marker = min(found)
    return text[:at], _skip(_SPACE, text, at + len(marker))


def _read_call(text: str, at: int) -> tuple[WrittenCall, int] | None:
    """The call in the object that starts at `at`, and the position after the object; None if there is none."""
    try:
        value, end = STRICT_JSON.raw_decode(text, at)
    except (ValueError, RecursionError):  # malformed, a number of 10,000 digits, or 10,000 brackets
        return None
    if not isinstance(value, dict) or not is_plain(value):
        return None
    key = "arguments" if "arguments" in value else "parameters"
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return WrittenCall(name, _member_text(text, at, key)), end


def _member_text(text: str, at: int, wanted: str) -> str:
    """The raw JSON text of a key's value, in a well-formed object that has the key."""
    written = ""
    at = _skip(_SPACE, text, at + 1)
    while not text.startswith("}", at):
        key, at = STRICT_JSON.raw_decode(text, at)
        start = _skip(_SPACE, text, _skip(_SPACE, text, at) + 1)
        _, end = STRICT_JSON.raw_decode(text, start)
        if key == wanted:
            written = text[start:end]
        at = _skip(_SEPARATORS, text, end)
    return written


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
