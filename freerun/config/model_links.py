"""Which file a name in a model directory may stand for.

A model may come from strangers, and its files end up in prompts, errors, runs and checkpoints. So a symbolic link
must not lead to any other file of the user's: only to one in the directory itself, or to where the Hugging Face
cache keeps its files. There every file is a link to a blob of the model, or to one that several models share.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from freerun.errors import ModelError

SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")
"""A file that several models of the cache share, below the cache's own `blobs`."""


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
