"""The text of `--help`: every key of a recipe with its default, and the docstring written under its field.

Python throws those strings away, so they are read from the stages' sources; nothing is declared twice.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, Literal, get_args, get_origin

from freerun.config.load import as_toml, key_types, stages


def field_docs() -> dict[str, str]:
    """The string literal under each field that has one, by dotted key."""
    return {
        f"{section}.{name}": doc for section, stage in stages().items() for name, doc in docs_of(stage).items()
    }


def describe_keys(width: int = 100) -> str:
    """All keys grouped by section, for the end of a verb's help."""
    docs = field_docs()
    blocks = []
    for section, stage in stages().items():
        lines = [f"[{section}]"]
        for field in dataclasses.fields(stage):
            key = f"{section}.{field.name}"
            lines.append(f"  --{key} {_describe_values(key, field.default)}")
            lines += textwrap.wrap(docs[key], width, initial_indent=" " * 6, subsequent_indent=" " * 6)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def docs_of(stage: type[Any]) -> dict[str, str]:
    """The string literal under each field of one stage."""
    definition = ast.parse(inspect.getsource(stage)).body[0]
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = inspect.cleandoc(doc)
    return docs


def _describe_values(key: str, default: Any) -> str:
    hint = key_types()[key]
    if get_origin(hint) is Literal:
        kind = "|".join(get_args(hint))
    else:
        kinds = {int: "INT", float: "FLOAT", bool: "true|false", str: "TEXT", tuple[float, ...]: "FLOAT,FLOAT,..."}
        kind = kinds.get(hint, "TEXT,TEXT,...")
    return f"{kind}  (default: {as_toml(default)})"
