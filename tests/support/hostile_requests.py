"""Requests that no client should send: valid ones of each dialect, damaged in every way we could think of."""

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

from scripted_sessions import MODEL

TOOL = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c", "content": "4"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "max_tokens": 5,
        "stop": ["\n"],
        "n": 2,
        "logprobs": True,
        "temperature": 0.5,
        "stream": False,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
    },
    "/v1/responses": {
        "model": MODEL,
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
        ],
        "tools": [{"type": "function", **TOOL, "strict": True}],
        "tool_choice": "auto",
        "max_output_tokens": 5,
        "include": ["message.output_text.logprobs"],
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "store": True,
        "stream": False,
    },
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "2+2?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I add."},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "4"}]},
        ],
        "tools": [{"name": "add", "description": "Add.", "input_schema": TOOL["parameters"]}],
        "tool_choice": {"type": "tool", "name": "add"},
        "stop_sequences": ["\n"],
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "stream": False,
    },
}
KEYS = ("k", "", "wrong", "k" * 5000, "k k", "\xff", ".")
ODD_LINES = (b"expect: 100-continue", b"transfer-encoding: chunked", b"a" * 3000 + b": b", b"bad line", b"\x00: b")
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 0.5, 1e308, "", "auto", "none", "required",
    "text", "function", "user", "tool", "system", "assistant", "image_url", "\x00", "\u2028", "😀", "x" * 100_000,
    [], [[]], [None], {}, [{}], {"": {}}, {"type": "text"}, {"type": "image"}, {"type": "tool_use"},
    [1, "a", None],
)  # fmt: skip


@dataclass(frozen=True)
class HostileRequest:
    """What goes over the wire, and what the client does then."""

    path: str
    data: bytes
    ending: str
    """`read` the answer, `shut` the sending side first, `leave` at once, or `wait` without having sent all."""
    is_http: bool
    """Whether its head is as it should be; otherwise the connection may end without an answer."""


def hostile_request(rng: random.Random) -> HostileRequest:
    path = rng.choice([*VALID])
    body = _damaged_body(json.loads(json.dumps(VALID[path])), rng)
    ending = rng.choices(("read", "shut", "leave", "wait"), (80, 8, 8, 4))[0]
    length = len(body)
    if ending == "wait":
        body = body[: length // 2]
    is_http = rng.random() > 0.05
    head = _head(path, length if is_http else length + rng.choice((-1, 0, 0, 1)), rng)
    if not is_http:
        head = head.removesuffix(b"\r\n") + rng.choice(ODD_LINES) + b"\r\n\r\n"
    return HostileRequest(path, head + body, ending, is_http)


def _head(path: str, length: int, rng: random.Random) -> bytes:
    method = rng.choices(("POST", "GET", "PUT", "PATCH"), (95, 2, 2, 1))[0]
    target = path if rng.random() < 0.97 else path + rng.choice(("/", "?a=%zz", "%00", "/../models", "x" * 3000))
    host = "localhost" if rng.random() < 0.95 else rng.choice(("evil.example", "[", "", "a" * 3000))
    key = "k" if rng.random() < 0.85 else rng.choice(KEYS)
    scheme = rng.choices(("authorization: Bearer ", "x-api-key: ", "authorization: "), (60, 35, 5))[0]
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", f"{scheme}{key}", f"content-length: {length}"]
    lines.append("connection: close")
    if rng.random() < 0.2:
        lines.append("x-stainless-retry-count: " + rng.choice(("0", "1", "00", "-1", "x", "²", "9" * 5000, "")))
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def _damaged_body(body: dict[str, Any], rng: random.Random) -> bytes:
    body["stream"] = rng.random() < 0.4
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        _damage(body, rng)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    match rng.choices(("whole", "cut", "flip", "deep", "large"), (85, 5, 5, 4, 1))[0]:
        case "cut":
            return data[: rng.randrange(len(data))]
        case "flip":
            place = rng.randrange(len(data))
            return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
        case "deep":
            return data[:-1] + b', "deep": ' + rng.choice((b"[", b'{"a":')) * rng.choice((10, 500, 50_000)) + b"}"
        case "large":
            return data + b" " * rng.choice((2_000_000, 8_000_000))
        case _:
            return data


def _damage(body: dict[str, Any], rng: random.Random) -> None:
    """Change one place of the body, at any depth."""
    place: Any = body
    while True:
        inner = [key for key in _keys(place) if isinstance(place[key], dict | list) and place[key]]
        if not inner or rng.random() < 0.3:
            break
        place = place[rng.choice(inner)]
    key = rng.choice(_keys(place))
    match rng.choice(("replace", "replace", "delete", "nest", "double")):
        case "replace":
            place[key] = copy.deepcopy(rng.choice(JUNK))
        case "delete":
            del place[key]
        case "nest":
            for _ in range(rng.choice((1, 3, 100))):
                place[key] = rng.choice(([place[key]], {"parameters": place[key]}))
        case "double" if isinstance(place, list):
            place += place[: rng.choice((1, 5000))] * rng.choice((1, 50))
        case _:
            place["x" * rng.choice((1, 5000)) if isinstance(place, dict) else key] = place[key]


def _keys(place: Any) -> list[Any]:
    return [*place] if isinstance(place, dict) else [*range(len(place))]
