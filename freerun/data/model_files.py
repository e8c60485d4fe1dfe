"""Reading the text files of a model directory, which may come from strangers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from freerun.config.model_links import real_file
from freerun.errors import ModelError

MAX_BYTES = 256 << 20
"""Of one file; the largest tokenizer.json in use has about 35 MB."""


def is_there(path: Path) -> bool:
    """Whether there is such a file; refuses one that must not be read."""
    try:
        if not path.is_file():
            return False
        num_bytes = real_file(path).stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error}); make it readable or save the model again") from error
    if num_bytes > MAX_BYTES:
        raise ModelError(f"{path}: {num_bytes:,} bytes, and at most {MAX_BYTES:,} are read; is it the right file?")
    return True


def read_text(path: Path) -> str:
    """The text of a file that `is_there`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error}); make it readable or save the model again") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not text in UTF-8 ({error.reason}); save the model directory again") from error


def read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file."""
    if not is_there(path):
        return {}
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({error}); save the model directory again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: a {type(content).__name__}, not an object; save the model directory again")
    return content
