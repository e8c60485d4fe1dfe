"""The files beside a model's weights: config, tokenizer, chat template. Does not need torch.

They are copied into every run and checkpoint, which other users may read (`config/model_directory.py`).
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from freerun.config.model_directory import read_object, real_file
from freerun.errors import ModelError

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
    """Copy the files that belong beside an adapter: all but config.json, which would make it seem a whole model.

    The end tokens of config.json go into generation_config.json.
    """
    for name in COMPANION_FILES:
        if name != "config.json":
            _copy(source, name, directory)
    generation = directory / "generation_config.json"
    settings = read_object(generation) if generation.is_file() else {}
    of_config = read_object(source / "config.json").get("eos_token_id")
    end_ids = [*_listed(settings.get("eos_token_id")), *_listed(of_config)]
    if end_ids:
        settings["eos_token_id"] = list(dict.fromkeys(end_ids))
        generation.write_text(json.dumps(settings, indent=2) + "\n")


def check_companions(source: Path) -> None:
    """Refuse a directory with a link that leads out of it, before any file is read."""
    for name in COMPANION_FILES:
        _companion(source, name)


def _copy(source: Path, name: str, directory: Path) -> None:
    """Copy a file if it exists; other users get at most their permissions on the original."""
    original, copy = _companion(source, name), directory / name
    if original is None:
        return
    copy.unlink(missing_ok=True)
    mode = 0o600 | original.stat().st_mode & 0o066
    with (
        original.open("rb") as read,
        os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        shutil.copyfileobj(read, file)


def _companion(source: Path, name: str) -> Path | None:
    """The regular file behind a name in the directory, or None."""
    path = source / name
    if not os.path.lexists(path):
        return None
    real = real_file(path)
    if not real.is_file():
        raise ModelError(f"{path}: not a regular file; restore it")
    return real


def _listed(end: Any) -> list[int]:
    """One token id, or several, as a list; anything else is ignored."""
    return [token for token in (end if isinstance(end, list) else [end]) if type(token) is int]
