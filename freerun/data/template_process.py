"""The process that renders a chat template: jinja in its sandbox, with limits enforced by the kernel.

    ChatTemplate ──Start──► compile ──► Answer         frames of msgpack over a socket that is the child's stdin
                 ──RenderChat─► render ──► Answer      once for each conversation

A template comes with a model from the internet. Jinja's sandbox protects the interpreter, but not processor and
memory: `'x' * 10**10` is evaluated while the template compiles, and a filter may run for hours inside one C call.
So it runs here, and the kernel ends the process:

    processor time   a budget that every rendering refills a little; SIGPROF ends the process when it is used up
    memory           RLIMIT_AS; beyond it allocations raise MemoryError

The process imports only jinja and msgspec, so it starts in a fraction of a second.
"""

import json
import resource
import signal
import socket
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import jinja2
import msgspec
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

BUDGET_SECONDS = 5.0
"""Processor time at the start, and the maximum that can accumulate."""
TOP_UP_SECONDS = 0.05
"""Processor time that each rendering adds; real templates take 2 ms at most."""
MEMORY_BYTES = 512 << 20
FREE_CHARACTERS = 100_000
"""Characters that a template may print for any conversation, besides the conversation itself."""
MAX_REPEATS = 20
"""How often a template may print the conversation."""
IDLE_SECONDS = 10.0
IDLE_STATUS = 3
"""Exit status after `IDLE_SECONDS` without a request; the next request needs a new process."""
_REASON_CHARACTERS = 200
_HEADER_BYTES = 4
_INTEGER = 1
"""Code of msgpack's extension type."""

T = TypeVar("T")


class Start(msgspec.Struct, frozen=True):
    """The first message: the template, and the special tokens it may print, by name."""

    source: str
    special_tokens: dict[str, str]


class RenderChat(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    tools: list[dict[str, Any]] | None = None
    """None instead of empty: many templates print a header for an empty list."""
    now: float | None = None
    """The time that `strftime_now` prints, in seconds since 1970; None for the current time."""


class Answer(msgspec.Struct, frozen=True):
    """The text, or the failure, as the end of a sentence that begins with "the chat template"."""

    text: str = ""
    failure: str = ""
    is_refusal: bool = False
    """Whether the template failed because of these messages, so that others may be rendered."""


def frame_of(message: Start | RenderChat | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_HEADER_BYTES, "big") + body


def receive(sock: socket.socket, expected: type[T]) -> T | None:
    """The next message, or None if the other side is gone."""
    header = _exactly(sock, _HEADER_BYTES)
    body = _exactly(sock, int.from_bytes(header, "big")) if header else None
    return None if body is None else body_of(body, expected)


def body_of(body: bytes, expected: type[T]) -> T:
    """The message in a frame's body."""
    return msgspec.msgpack.decode(body, type=expected, ext_hook=_unpacked_integer)


def packed_integer(value: int) -> int | msgspec.msgpack.Ext:
    """The value for a frame: msgpack integers have 64 bits, JSON integers have no limit."""
    return value if -(1 << 63) <= value < 1 << 64 else msgspec.msgpack.Ext(_INTEGER, str(value).encode())


def _unpacked_integer(code: int, digits: memoryview) -> int:
    return int(bytes(digits))


def _exactly(sock: socket.socket, num_bytes: int) -> bytes | None:
    arrived = bytearray()
    while len(arrived) < num_bytes:
        if not (chunk := sock.recv(min(num_bytes - len(arrived), 1 << 20))):
            return None
        arrived += chunk
    return bytes(arrived)


def _one_line(text: str) -> str:
    """Text from a template for use in an error: short, on one line, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _REASON_CHARACTERS]).split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[:_REASON_CHARACTERS]}..."


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training masks; here it only prints its body."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """A namespace without underscore names, which would give access to CPython internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f'a chat template may not set "{name}" on a namespace')
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    space = _TemplateNamespace()
    for name, value in dict(*args, **kwargs).items():
        space[name] = value
    return space


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's filter escapes `<` and `>`, which the model never saw escaped."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_at(now: float | None) -> Callable[[str], str]:
    """`strftime_now` at a fixed time; with the current date, prompts would differ from day to day."""
    time = datetime.now() if now is None else datetime.fromtimestamp(now)
    return time.strftime


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that `transformers` offers to templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _namespace
    return environment


class CompiledTemplate:
    """A compiled template; every failure becomes an answer."""

    def __init__(self, start: Start) -> None:
        self._special_tokens = start.special_tokens
        self.compiled = Answer()
        try:
            self._template = _environment().from_string(start.source)
        except jinja2.TemplateSyntaxError as error:
            reason = _one_line(error.message or "")
            self.compiled = Answer(failure=f"has an error in line {error.lineno}: {reason}")
        except Exception as error:  # noqa: BLE001 - an untrusted template can raise anything
            self.compiled = Answer(failure=_failure(error, "does not compile"))

    def render(self, request: RenderChat) -> Answer:
        try:
            text = self._template.render(
                messages=request.messages,
                tools=request.tools,
                documents=None,
                add_generation_prompt=request.add_generation_prompt,
                strftime_now=_strftime_at(request.now),
                **self._special_tokens,
            )
            text.encode()  # lone surrogates are not text
        except Exception as error:  # noqa: BLE001 - an untrusted template can raise anything
            what = f"refuses messages of ({_roles(request.messages)})"
            return Answer(failure=_failure(error, what), is_refusal=True)
        limit = FREE_CHARACTERS + MAX_REPEATS * _num_characters([request.messages, request.tools])
        if len(text) > limit:
            return Answer(failure=f"prints {len(text):,} characters, and may print {limit:,}", is_refusal=True)
        return Answer(text=text)


def _num_characters(value: Any) -> int:
    """Characters of the strings in nested lists and dictionaries; names of fields are the protocol's."""
    match value:
        case str():
            return len(value)
        case list():
            return sum(map(_num_characters, value))
        case dict():
            return sum(map(_num_characters, value.values()))
        case _:
            return 0


def _failure(error: Exception, what: str) -> str:
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY_BYTES >> 20} MiB of memory"
    name = "" if isinstance(error, jinja2.TemplateError | TypeError) else f"{type(error).__name__}: "
    return f"{what}: {name}{_one_line(str(error))}"


def _roles(messages: list[dict[str, Any]]) -> str:
    return _one_line(", ".join(str(message.get("role", "no role")) for message in messages))


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, BUDGET_SECONDS)


def _top_up() -> None:
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    signal.setitimer(signal.ITIMER_PROF, min(left + TOP_UP_SECONDS, BUDGET_SECONDS))


def main() -> None:
    """Serve until the other side is gone, or idle for a while."""
    sock = socket.socket(fileno=0)
    sock.settimeout(IDLE_SECONDS)
    _limit_resources()
    try:
        start = receive(sock, Start)
        if start is None:
            return
        renderer = CompiledTemplate(start)
        sock.sendall(frame_of(renderer.compiled))
        while (request := receive(sock, RenderChat)) is not None:
            sock.sendall(frame_of(renderer.render(request)))
            _top_up()
    except TimeoutError:
        sys.exit(IDLE_STATUS)
    except ConnectionError:
        return


if __name__ == "__main__":
    main()
