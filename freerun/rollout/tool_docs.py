"""Reads a tool's docstring: the description of the tool, and of each parameter.

The usual ways to document a parameter are all read:

    Args:                      Parameters              :param str city: where to look
        city: where to look    ----------
                               city : str
                                   where to look

The description is the text before the first of these, or before "Returns:" and the like. A docstring in none of
these styles is all description. Nothing here is an error: the text is for the policy, not for Python.
"""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

_PARAMETERS = {"args", "arguments", "parameters", "params"}
_OTHERS = {
    "returns", "return", "yields", "yield", "raises", "raise", "examples", "example", "notes", "note",
    "attributes", "see also", "references", "warnings",
}  # fmt: skip
_FIELDS = {"param", "parameter", "arg", "argument", "type", "rtype"}
_UNDERLINE = re.compile(r"-{3,}")
_FIELD = re.compile(r":(\w+)\s*([^:]*):\s*(.*)")
"""A field of reST, such as `:param int days: how many`."""
_ENTRY = re.compile(r"(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s?(.*)")
"""A parameter of a section: its indent, its name, the rest of the line."""


class ToolDocs(NamedTuple):
    """The description of a tool and of its parameters."""

    description: str = ""
    parameters: dict[str, str] = {}  # noqa: RUF012 - never changed


def read_docs(function: Callable[..., Any], parameters: Collection[str]) -> ToolDocs:
    """Read the docstring of a function with these parameters."""
    lines = (inspect.getdoc(function) or "").splitlines()
    start = next((at for at in range(len(lines)) if _starts_section(lines, at)), len(lines))
    described = _of_sections(lines[start:], parameters) | _of_fields(lines[start:], parameters)
    return ToolDocs(_joined(lines[:start]), {name: text for name, text in described.items() if text})


def _starts_section(lines: list[str], at: int) -> bool:
    field = _FIELD.match(lines[at])
    return bool(_title(lines, at)) or (field is not None and field[1] in _FIELDS | _OTHERS)


def _title(lines: list[str], at: int) -> str:
    """The title of the section that starts in this line, in lower case; empty if none does."""
    line = lines[at].strip().lower()
    is_underlined = at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1].strip()) is not None
    title = line if is_underlined else line.removesuffix(":") if line.endswith(":") else ""
    return title if title in _PARAMETERS | _OTHERS else ""


def _of_sections(lines: list[str], names: Collection[str]) -> dict[str, str]:
    """Parameter descriptions from sections in the style of Google or NumPy."""
    found: dict[str, list[str]] = {}
    is_inside, is_numpy, indent, name = False, False, 0, ""
    for at, line in enumerate(lines):
        if title := _title(lines, at):
            is_inside, is_numpy, name = title in _PARAMETERS, not line.rstrip().endswith(":"), ""
        elif is_inside and line.strip() and not _UNDERLINE.fullmatch(line.strip()):
            entry = _ENTRY.fullmatch(line)
            if entry is not None and entry[2] in names and (not name or len(entry[1]) <= indent):
                name, indent = entry[2], len(entry[1])
                found[name] = [] if is_numpy else [entry[3]]  # NumPy puts the type after the colon
            elif name:
                found[name].append(line)
    return {name: _joined(text) for name, text in found.items()}


def _of_fields(lines: list[str], names: Collection[str]) -> dict[str, str]:
    """Parameter descriptions from reST fields."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        field = _FIELD.match(line)
        if field is not None:
            words = field[2].split()
            name = words[-1] if words and field[1] in _FIELDS - {"type", "rtype"} else ""
            if name in names:
                found[name] = [field[3]]
        elif name in found and line.startswith(" "):
            found[name].append(line)
        else:
            name = ""
    return {name: _joined(text) for name, text in found.items()}


def _joined(lines: list[str]) -> str:
    """The lines as running text; blank lines separate paragraphs."""
    paragraphs = "\n".join(line.strip() for line in lines).strip().split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
