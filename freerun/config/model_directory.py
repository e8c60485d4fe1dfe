"""Reading the files of a model directory. It may come from strangers, so every file is suspect.

Its files end up in prompts, errors, runs and checkpoints, so a symbolic link must not lead to any other file of
the user: only to one in the directory itself, or to where the Hugging Face cache keeps its files. There every file
is a link to a blob of the model, or to one that several models share.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from freerun.errors import ModelError

MAX_TEXT_BYTES = 256 << 20
"""Largest text file that is read; the largest tokenizer.json in use has about 35 MB."""
SHOWN_CHARACTERS = 120
SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")
"""A file that several models of the cache share, below the cache's `blobs`."""


def real_file(path: Path) -> Path:
    """The file behind a name in a model directory, which need not exist; refuses one that is elsewhere."""
    directory, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    if target.is_relative_to(directory) or _is_blob(target, directory):
        return target
    raise ModelError(
        f"{path}: a symbolic link to {target}, outside the model directory; put a copy of the file in its place"
    )


def _is_blob(target: Path, snapshot: Path) -> bool:
    """Whether a link from a snapshot of the Hugging Face cache leads to a file that the cache keeps for it."""
    model = snapshot.parent.parent
    if snapshot.parent.name != "snapshots" or not model.name.startswith("models--"):
        return False
    shared = model.parent / "blobs"
    is_shared = (
        target.is_relative_to(shared) and SHARED_BLOB.fullmatch(str(target.relative_to(shared))) is not None
    )
    return target.parent == model / "blobs" or is_shared


def has_text(path: Path) -> bool:
    """Whether there is such a text file; refuses one that must not be read."""
    try:
        if not path.is_file():
            return False
        num_bytes = real_file(path).stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error}); make it readable or save the model again") from error
    if num_bytes > MAX_TEXT_BYTES:
        raise ModelError(
            f"{path}: {num_bytes:,} bytes, and at most {MAX_TEXT_BYTES:,} are read; is it the right file?"
        )
    return True


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error}); make it readable or save the model again") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not text in UTF-8 ({error.reason}); save the model directory again") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; refuses one that is not there, or must not be read."""
    has_text(path)
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}: not JSON ({error.msg}); restore the file") from None
    except RecursionError:
        raise ModelError(f"{path}: not JSON (nested too deeply); restore the file") from None
    except ValueError as error:  # a number of thousands of digits
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
