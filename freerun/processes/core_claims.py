"""Exclusive cores for a process, on machines whose scheduler counts cores but does not pin processes.

A claim is a file lock per core. It excludes workers of other runs and of other nodes on the same machine, and it
always ends with the process.
"""

import fcntl
import os
import tempfile
from collections.abc import Collection
from pathlib import Path


class CoreClaim:
    """Cores that no other process can claim until this is released."""

    def __init__(self, cores: tuple[int, ...] = (), locks: tuple[int, ...] = ()) -> None:
        self.cores = cores
        self._locks = locks

    def release(self) -> None:
        for lock in self._locks:
            os.close(lock)
        self.cores = self._locks = ()


def claim_cores(allowed: Collection[int], num_cores: int, *, directory: Path | None = None) -> CoreClaim:
    """Claim the lowest free cores; claims none if there are too few, because threads would crowd on them."""
    directory = directory or Path(tempfile.gettempdir()) / f"freerun-cores-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    locked: dict[int, int] = {}
    for core in sorted(allowed):
        if len(locked) == num_cores:
            break
        if (lock := _try_to_lock(directory / f"core-{core}")) is not None:
            locked[core] = lock
    claim = CoreClaim(tuple(locked), tuple(locked.values()))
    if len(locked) < num_cores:
        claim.release()
    return claim


def _try_to_lock(path: Path) -> int | None:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
