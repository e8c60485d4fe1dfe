"""Converts rows to prompts: every row of every source is checked here, before the run starts.

    (key, row) or (key, error) ──► templates of the recipe ──► TaskPrompt

An unusable row is an error: a run that silently trains on half of its file is worse than one that does not
start. The error names the first bad rows by their keys (`train.jsonl:17`). This module does not know where rows
come from.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from freerun.config.data import DataConfig
from freerun.data.task_prompt import TaskPrompt
from freerun.errors import ConfigError, DataError

NUM_ROWS_REPORTED = 5

T = TypeVar("T")
Row = Mapping[str, Any]

_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class RowError(Exception):
    """Why a row cannot be used; `convert` adds the row's key."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as spelled in a file, for graders that compare text: 1.10 is not 1.1."""

    text: str


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    list: "a list",
    dict: "an object",
    str: "a string",
    Number: "a number",
    RowError: "an object that repeats a key",
}


def to_prompts(rows: Iterable[tuple[str, Row | RowError]], config: DataConfig) -> tuple[TaskPrompt, ...]:
    """A prompt for each row, in order; the error names the first unusable rows."""
    return tuple(prompt for _, prompt in convert(rows, _PromptMaker(config).make))


def convert(rows: Iterable[tuple[str, Row | RowError]], make: Callable[[str, Row], T]) -> list[tuple[str, T]]:
    """The result of `make` for each row, with its key; the error names the first unusable rows."""
    made: list[tuple[str, T]] = []
    complaints: list[str] = []
    for key, row in rows:
        try:
            if isinstance(row, RowError):
                raise row
            made.append((key, make(key, row)))
        except RowError as bad:
            complaints.append(f"{key}: {bad}")
    if complaints:
        raise DataError(report(complaints, num_rows=len(made) + len(complaints)))
    return made


def text_of(row: Row, name: str, *, setting: str) -> str:
    """A field as text: a string, a number, or a list of strings, which become lines."""
    if name not in row:
        there = ", ".join(f'"{field}"' for field in row) or "none"
        raise RowError(f'no field "{name}" (fields: {there}); change {setting} or the row')
    value = row[name]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    if isinstance(value, Number):
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError(f'field "{name}" is {value}, not a finite number; fill it or remove the row')
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(
            f'field "{name}" is {kind_of(value)}, not a string, a number or a list of strings; '
            f"change {setting} or the row"
        )
    return str(value)


def kind_of(value: Any) -> str:
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def plain(value: Any) -> Any:
    """The value in plain Python types: numbers lose their spelling."""
    if isinstance(value, Number):
        return int(value.text) if value.text.lstrip("-").isdigit() else float(value.text)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


class PromptTemplate:
    """Text with {field}s; {{ and }} stand for braces.

    Fields are looked up, never evaluated: `str.format` would follow `{row.__class__}` into the interpreter.
    """

    def __init__(self, template: str, *, setting: str = "data.template") -> None:
        self.setting = setting
        """Key of the setting, for errors."""
        self._template = template
        matches = list(_TOKENS.finditer(template))
        for match in matches:
            if match[0] in ("{", "}"):
                raise ConfigError(
                    f'config: {setting} has a lone "{match[0]}" at character {match.start()}; '
                    "write {{ and }} for braces, {field} for a field of the row"
                )
        self.fields = tuple(dict.fromkeys(match[1] for match in matches if match[1]))
        if not self.fields:
            raise ConfigError(
                f"config: {setting} = {template!r} names no {{field}}, so it would be the same for all rows"
            )

    def fill(self, values: Mapping[str, str]) -> str:
        return _TOKENS.sub(lambda m: values[m[1]] if m[1] else m[0][0], self._template)


class _PromptMaker:
    """The templates of a recipe, compiled once for all rows."""

    def __init__(self, config: DataConfig) -> None:
        self._prompt = PromptTemplate(config.template)
        self._answer = PromptTemplate(config.answer, setting="data.answer")
        self._shot = (
            PromptTemplate(config.shot_template, setting="data.shot_template") if config.shot_template else None
        )
        self._answer_after = config.answer_after

    def make(self, key: str, row: Row) -> TaskPrompt:
        values = _values(row, self._prompt)
        if not any(value.strip() for value in values.values()):
            names = ", ".join(f'"{name}"' for name in values)
            raise RowError(f"the prompt is empty ({names}); fill it or remove the row")
        shot = self._shot.fill(_values(row, self._shot)) if self._shot else ""
        text, answer = self._prompt.fill(values), self._answer_of(row)
        return TaskPrompt(key=key, text=text, answer=answer, shot=shot, row=plain(row))

    def _answer_of(self, row: Row) -> str:
        text = self._answer.fill(_values(row, self._answer))
        fields = ", ".join(f'"{name}"' for name in self._answer.fields)
        if self._answer_after:
            _, mark, text = text.rpartition(self._answer_after)
            if not mark:
                raise RowError(
                    f"field {fields} lacks the mark {json.dumps(self._answer_after, ensure_ascii=False)}; "
                    "change data.answer_after or the row"
                )
        answer = text.strip()
        if not answer:
            raise RowError(f"field {fields} holds no answer; fill it or remove the row")
        return answer


def _values(row: Row, template: PromptTemplate) -> dict[str, str]:
    return {name: text_of(row, name, setting=template.setting) for name in template.fields}


def report(complaints: list[str], *, num_rows: int) -> str:
    """The first complaints, one per line, and the number of further ones."""
    shown = complaints[:NUM_ROWS_REPORTED]
    if len(complaints) > len(shown):
        shown.append(f"and {len(complaints) - len(shown)} more of {num_rows} rows")
    return "\n".join(shown)
