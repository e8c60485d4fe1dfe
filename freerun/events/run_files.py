"""A run's files on disk: their size, and the versions with a checkpoint."""

import os
from pathlib import Path


def disk_bytes(directory: Path) -> int:
    """Size of all files below a directory; links are not followed, and files that disappear are ignored."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def describe_bytes(number: int) -> str:
    """Format as `1.2 GB`, `3.4 MB`."""
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


def saved_versions(checkpoints: Path) -> frozenset[int]:
    """Versions with a checkpoint in this directory."""
    numbers = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return frozenset(int(number) for number in numbers if number.isdecimal())
