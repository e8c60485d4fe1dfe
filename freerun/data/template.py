"""Text with {field}s: prompts, answers and shown completions are made from the fields of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping

from freerun.errors import ConfigError

_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class PromptTemplate:
    """Text with {field}s; {{ and }} stand for braces.

    Fields are looked up, never evaluated: `str.format` would follow `{row.__class__}` into the interpreter.
    """

    def __init__(self, template: str, *, setting: str = "data.template") -> None:
        self.setting = setting
        """The key it was written under, for errors."""
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
                f"config: {setting} = {template!r} names no {{field}}, so that it would be the same for all rows"
            )

    def fill(self, values: Mapping[str, str]) -> str:
        return _TOKENS.sub(lambda m: values[m[1]] if m[1] else m[0][0], self._template)
