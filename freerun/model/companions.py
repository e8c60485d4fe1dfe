"""The files beside a model's weights: its shape, its tokenizer, its chat template. No torch is needed for them.

They are copied into every run and checkpoint, which others may read, so a symbolic link must not lead them to any
file of the user's: only to one in the directory itself, or to where the Hugging Face cache keeps its files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from freerun.errors import ModelError
from freerun.model.json_file import read_object

COMPANION_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")
"""A file that several models of the cache share, below the cache's own `blobs`."""


def copy_companions(source: Path, directory: Path) -> None:
    """Copy config, tokenizer and chat template; the weights we save beside them are float32."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in COMPANION_FILES:
        _copy(source, name, directory)
    config = read_object(directory / "config.json")
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def copy_tokenizer(source: Path, directory: Path) -> None:
    """What belongs beside an adapter: all but config.json, which would make it pass for a whole model.

    The end tokens that config.json names go where they are looked for without it.
    """
    for name in COMPANION_FILES:
        if name != "config.json":
            _copy(source, name, directory)
    generation = directory / "generation_config.json"
    settings = read_object(generation) if generation.is_file() else {}
    end_ids = [*_listed(settings.get("eos_token_id")), *_listed(_end_of(source))]
    if end_ids:
        settings["eos_token_id"] = list(dict.fromkeys(end_ids))
        generation.write_text(json.dumps(settings, indent=2) + "\n")


def check_companions(source: Path) -> None:
    """Refuse a directory with a link that leads out of it, before anything of it is read."""
    for name in COMPANION_FILES:
        _real_file(source, name)


def _copy(source: Path, name: str, directory: Path) -> None:
    """Copy a file that is there; others may do with the copy at most what they may with the original."""
    original, copy = _real_file(source, name), directory / name
    if original is None:
        return
    copy.unlink(missing_ok=True)
    mode = 0o600 | original.stat().st_mode & 0o066
    with (
        original.open("rb") as read,
        os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        shutil.copyfileobj(read, file)


def _real_file(source: Path, name: str) -> Path | None:
    """The regular file behind a name in the directory, None if there is no such name."""
    path, root = source / name, Path(os.path.realpath(source))
    if not os.path.lexists(path):
        return None
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root) and not _is_blob(real, root):
        raise ModelError(
            f"{path}: a symbolic link to {real}, outside the model directory; put a copy of the file in its place"
        )
    if not real.is_file():
        raise ModelError(f"{path}: not a regular file; restore it")
    return real


def _is_blob(real: Path, snapshot: Path) -> bool:
    """Whether a link from a snapshot of the Hugging Face cache leads to a file that the cache keeps for it."""
    model = snapshot.parent.parent
    if snapshot.parent.name != "snapshots" or not model.name.startswith("models--"):
        return False
    shared = model.parent / "blobs"
    is_shared = real.is_relative_to(shared) and SHARED_BLOB.fullmatch(str(real.relative_to(shared))) is not None
    return real.parent == model / "blobs" or is_shared


def _end_of(source: Path) -> Any:
    return read_object(source / "config.json").get("eos_token_id")


def _listed(end: Any) -> list[int]:
    """One token id or several, as numbers; anything else names no token."""
    return [token for token in (end if isinstance(end, list) else [end]) if type(token) is int]
