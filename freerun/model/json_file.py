"""JSON objects of a model directory, and how their values are quoted in messages: a file may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from freerun.errors import ModelError

SHOWN_CHARACTERS = 120


def read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}: not JSON ({error.msg}); restore the file") from None
    except RecursionError:
        raise ModelError(f"{path}: nested too deeply; restore the file") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a number of thousands of digits
        raise ModelError(f"{path}: cannot be read ({error}); restore the file") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: not a JSON object; restore the file")
    return content


def shown(value: Any) -> str:
    """A value as JSON, on one line of plain characters and in a length that fits in a message."""
    if isinstance(value, dict | list):
        return "{...}" if isinstance(value, dict) else "[...]"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
