"""What docs/metrics.md says that a run records."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def documented_metrics() -> set[str]:
    """The first column of the first table."""
    return set(_names(PAGE.read_text().partition("## The store")[0]))


def documented_columns() -> dict[str, list[str]]:
    """The first column of the first table below the heading of each table of the store."""
    found = re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {table: _names(text.partition("| kind |")[0]) for table, text in found}


def documented_kinds() -> set[str]:
    [kinds] = re.findall(r"^\| kind \| when \|\n(.*?)(?=^### )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return set(_names(kinds))


def _names(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
