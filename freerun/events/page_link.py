"""The link to a live run's page, with its token: stored in a file that only its user can read.

It is neither in the store nor in a log, and is removed when the run ends.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

LINK_FILE = "page.token"
_TOKEN_BYTES = 32
_MAX_BYTES = 1000


def new_token() -> str:
    """A random token that a browser must present."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def write_link(run: Path, link: str) -> None:
    """Write the link to a new file, which replaces an old one."""
    forget_link(run)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(run / LINK_FILE, flags, 0o600), "w") as file:
        file.write(f"{link}\n")


def forget_link(run: Path) -> None:
    with contextlib.suppress(OSError):
        (run / LINK_FILE).unlink()


def read_link(run: Path) -> str:
    """The link of a run's page; empty unless this user has written one."""
    try:
        with os.fdopen(os.open(run / LINK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            found = os.fstat(file.fileno())
            is_private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
            return file.read(_MAX_BYTES).strip() if is_private and stat.S_ISREG(found.st_mode) else ""
    except (OSError, ValueError):
        return ""
