"""Only one process at a time may change a run directory: it holds a lock on the file `lock` in it.

The kernel releases the lock when the process ends for any reason. The file is never removed: a process that has
the old file open would otherwise lock nothing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freerun.errors import ConfigError

LOCK_FILE = "lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory for this process; raises immediately if another process holds the lock."""
    # Do not follow a link: in a run copied from elsewhere it could point to any file of the user.
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f'config: the run "{directory}" is in use by {_describe_holder(descriptor)}; '
                "wait for it or stop it, or choose another run.name"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _describe_holder(descriptor: int) -> str:
    written = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f"process {written}" if written.isdecimal() else "another process"
