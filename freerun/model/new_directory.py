"""A new model directory appears whole or not at all: written under a temporary name beside it, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from freerun.errors import ModelError

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What a model directory must hold to be loaded."""


def is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in FILES)


def require_vacant(directory: Path) -> None:
    """Refuse a path that is in use, before anything is computed for it."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    what = "exists and is not empty" if directory.is_dir() else "is a file"
    raise ModelError(f'cannot make a model in "{directory}": it {what}; remove it or choose another directory')


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yields the temporary directory to fill; it takes the name `directory` if the block succeeds."""
    require_vacant(directory)
    target = directory.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(target)
    except (OSError, SafetensorError) as error:  # the second is how safetensors reports a full disk
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f'cannot make a model in "{directory}" ({reason}); free disk space or choose another directory'
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
