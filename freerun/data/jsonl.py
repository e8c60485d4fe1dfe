"""Problems from a JSONL file, every row checked before the run begins.

A row that cannot be used is an error, not a row less: a run that silently trains on half of its file is
worse than one that does not start. The error names the first bad rows by file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.data import DataConfig
from freerun.data.problem import Problem
from freerun.errors import ConfigError, DataError

NUM_ROWS_REPORTED = 5

_TEMPLATE_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")
_JSON_KINDS = {type(None): "null", bool: "a boolean", list: "a list", dict: "an object", str: "a string"}


class PromptTemplate:
    """Text with {field}s; {{ and }} stand for braces.

    Fields are looked up, never evaluated: `str.format` would follow `{row.__class__}` into the interpreter.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        matches = list(_TEMPLATE_TOKENS.finditer(template))
        for match in matches:
            if match[0] in ("{", "}"):
                raise ConfigError(
                    f'config: data.template has a lone "{match[0]}" at character {match.start()}; '
                    "write {{ and }} for braces, {field} for a field of the row"
                )
        self.fields = tuple(dict.fromkeys(match[1] for match in matches if match[1]))
        if not self.fields:
            raise ConfigError(
                f"config: data.template = {template!r} names no {{field}}, so that all prompts would be the same"
            )

    def fill(self, values: dict[str, str]) -> str:
        return _TEMPLATE_TOKENS.sub(lambda m: values[m[1]] if m[1] else m[0][0], self._template)


def read(path: Path, config: DataConfig) -> tuple[Problem, ...]:
    """All problems of the file, in its order."""
    template = PromptTemplate(config.template)
    problems: list[Problem] = []
    complaints: list[str] = []
    for number, line in _lines(path):
        key = f"{path.name}:{number}"
        try:
            problems.append(_problem(key, line, template, config))
        except _RowError as bad:
            complaints.append(f"{key}: {bad}")
    if complaints:
        raise DataError(_report(complaints, num_rows=len(problems) + len(complaints)))
    if not problems:
        raise DataError(f"{path}: the file has no rows; each line must be one JSON object")
    return tuple(problems)


class _RowError(Exception):
    """Why one row cannot be used; the reader adds file and line."""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1."""
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise DataError(f"{path}: {reason}; set data.path (or data.held_out_path) to a JSONL file") from error
    # Bytes, because text would also be split at U+2028 and its like, which JSON allows within strings.
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _problem(key: str, line: bytes, template: PromptTemplate, config: DataConfig) -> Problem:
    row = _parse(line)
    values = {name: _text_of(row, name, setting="data.template") for name in template.fields}
    if not any(value.strip() for value in values.values()):
        names = ", ".join(f'"{name}"' for name in values)
        raise _RowError(f"the prompt is empty ({names}); fill it or remove the row")
    return Problem(key=key, text=template.fill(values), answer=_answer(row, config))


def _parse(line: bytes) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _RowError(f"not JSON ({error}); each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise _RowError(f"{_kind(row)}, not an object; each line must be one JSON object")
    return row


def _text_of(row: dict[str, Any], name: str, *, setting: str) -> str:
    if name not in row:
        there = ", ".join(f'"{field}"' for field in row) or "none"
        raise _RowError(f'no field "{name}" (fields: {there}); change {setting} or the row')
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _RowError(f'field "{name}" is {_kind(value)}, not a string or number; change {setting} or the row')
    return str(value)


def _answer(row: dict[str, Any], config: DataConfig) -> str:
    text = _text_of(row, config.answer_field, setting="data.answer_field")
    if config.answer_after:
        _, mark, text = text.rpartition(config.answer_after)
        if not mark:
            raise _RowError(
                f'field "{config.answer_field}" lacks the mark "{config.answer_after}"; '
                "change data.answer_after or the row"
            )
    answer = text.strip()
    if not answer:
        raise _RowError(f'field "{config.answer_field}" holds no answer; fill it or remove the row')
    return answer


def _kind(value: Any) -> str:
    return _JSON_KINDS.get(type(value), "a number")


def _report(complaints: list[str], *, num_rows: int) -> str:
    shown = complaints[:NUM_ROWS_REPORTED]
    if len(complaints) > len(shown):
        shown.append(f"and {len(complaints) - len(shown)} more of {num_rows} rows")
    return "\n".join(shown)
