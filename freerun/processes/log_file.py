"""The logs of a run: files of the user alone that are only ever appended to."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path


def open_log(path: Path) -> FileIO:
    """Open the log for appending, unbuffered; refuses a link: in a copied run it may lead to any file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
