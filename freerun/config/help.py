"""The text of `--help`: every key of a recipe with its default, and the docstring written under its field."""

import textwrap
from typing import Any, Literal, get_args, get_origin

from freerun.config.load import key_types, stages
from freerun.config.section import field_docs
from freerun.config.values import as_toml, bare_type

WIDTH = 100


def describe_keys() -> str:
    """All keys grouped by section, for the end of a verb's help."""
    blocks = []
    for section, stage in stages().items():
        lines = [f"[{section}]"]
        for name, doc in field_docs(stage).items():
            key = f"{section}.{name}"
            lines.append(f"  --{key} {_describe_values(key, getattr(stage, name, ()))}")
            lines += textwrap.wrap(doc, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _describe_values(key: str, default: Any) -> str:
    hint = bare_type(key_types()[key])
    if get_origin(hint) is Literal:
        kind = "|".join(get_args(hint))
    else:
        kinds = {int: "INT", float: "FLOAT", bool: "true|false", str: "TEXT"}
        kind = kinds.get(hint) or ("TEXT,TEXT,..." if get_args(hint)[0] is str else "FLOAT,FLOAT,...")
    return f"{kind}  (default: {as_toml(default)})"
