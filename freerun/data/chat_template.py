"""Chat templates: messages in, the text the model was trained on out.

A template comes with a model from the internet, so it runs in jinja's sandbox; it finds there what
`transformers` promises to templates. Tool schemas are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from freerun.errors import ModelError

Message = Mapping[str, str]
"""`role` ("user", "assistant", "system") and `content`."""


class ChatTemplate:
    """A compiled template and the special tokens it may print."""

    def __init__(self, source: str, *, origin: str, special_tokens: Mapping[str, str]) -> None:
        self._origin = origin
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"{origin}: chat template line {error.lineno}: {error.message}; "
                "repair it or set data.use_chat_template = false"
            ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text, up to where the assistant's turn begins, or without that beginning."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(message.get("role", "no role") for message in messages)
            raise ModelError(
                f"{self._origin}: the chat template refuses messages of ({roles}): {error}; "
                "repair it or set data.use_chat_template = false"
            ) from error


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training masks; here it only prints its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """A namespace without underscore names, which reach into CPython."""

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
    """Plain JSON: jinja's own filter would escape `<` and `>`, which the model never saw escaped."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    """The wall clock: a template that prints the date makes prompts that differ from day to day."""
    return datetime.now().strftime(format)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _namespace
    return environment
