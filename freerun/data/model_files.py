"""Reading the text files of a model directory, which may come from strangers.

A link may not lead out of the directory: it would bring a file of the user into prompts, errors and checkpoints.
The cache of the Hugging Face hub is the exception: there every file is a link to a blob of the model, or to one
that several models share.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from freerun.errors import ModelError

MAX_BYTES = 256 << 20
"""Of one file; the largest tokenizer.json in use has about 35 MB."""
_SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")


def is_there(path: Path) -> bool:
    """Whether there is such a file; refuses one that must not be read."""
    try:
        if not path.is_file():
            return False
        directory, target = path.parent.resolve(), path.resolve()
        num_bytes = target.stat().st_size
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); make it readable or save the model again") from error
    if not (target.is_relative_to(directory) or _is_blob(target, directory)):
        raise ModelError(f"{path}: a link to {target}, outside of the model directory; put a copy in its place")
    if num_bytes > MAX_BYTES:
        raise ModelError(f"{path}: {num_bytes:,} bytes, and at most {MAX_BYTES:,} are read; is it the right file?")
    return True


def _is_blob(target: Path, snapshot: Path) -> bool:
    model = snapshot.parent.parent
    if snapshot.parent.name != "snapshots" or not model.name.startswith("models--"):
        return False
    shared = model.parent / "blobs"
    is_shared = (
        target.is_relative_to(shared) and _SHARED_BLOB.fullmatch(str(target.relative_to(shared))) is not None
    )
    return is_shared or target.parent == model / "blobs"


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
