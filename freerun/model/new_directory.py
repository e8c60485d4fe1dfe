"""Writes a model directory atomically: it appears complete or not at all, and its growth can be watched.

It is written under a temporary name next to its final one, then renamed.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from freerun.errors import ModelError

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What a model directory must hold to be loaded."""
GROWTH_SECONDS = 1.0
BLOCK_BYTES = 512
"""The unit of `st_blocks` on every file system."""


def is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in MODEL_FILES)


def require_vacant(directory: Path) -> None:
    """Refuse a path that is in use, before the work for it starts."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    what = "exists and is not empty" if directory.is_dir() else "is a file"
    raise ModelError(f'cannot make a model in "{directory}": it {what}; remove it or choose another directory')


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; it gets the name `directory` if the block succeeds."""
    require_vacant(directory)
    target = directory.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(target)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by the second
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f'cannot make a model in "{directory}" ({reason}); free disk space or choose another directory'
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def reported_growth(directory: Path, report: Callable[[], None]) -> Iterator[None]:
    """While the block runs, call `report` from a thread whenever the directory has grown on disk."""
    is_over = threading.Event()

    def watch() -> None:
        most = disk_bytes(directory)
        while not is_over.wait(GROWTH_SECONDS):
            if (now := disk_bytes(directory)) > most:
                most = now
                report()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def disk_bytes(directory: Path) -> int:
    """The allocated size, not the length: safetensors sets a file's full length before it writes."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * BLOCK_BYTES
        except FileNotFoundError:  # renamed in the meantime
            continue
    return total
