"""Whether a directory that is being written makes progress: for a writer that says nothing until it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_SECONDS = 1.0
BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's own is."""


@contextmanager
def reported_growth(directory: Path, report: Callable[[], None]) -> Iterator[None]:
    """While the block runs, call `report` from a thread whenever the directory has grown on the disk."""
    is_over = threading.Event()

    def watch() -> None:
        most = disk_bytes(directory)
        while not is_over.wait(LOOK_SECONDS):
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
    """Blocks rather than lengths: safetensors gives a file its full length before it writes."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * BLOCK_BYTES
        except FileNotFoundError:  # renamed meanwhile
            continue
    return total
