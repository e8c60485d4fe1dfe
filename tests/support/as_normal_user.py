"""Runs a command as `nobody`, for tests that root starts: python tests/support/as_normal_user.py COMMAND...

The interpreter, its virtual environment and the project may be in directories that only root can enter. So
they are mounted again, in a mount namespace of this process alone, where others can reach them.
"""

import os
import sys
from pathlib import Path

from freerun.sandbox import syscalls

NOBODY = 65534
PROJECT = Path(__file__).resolve().parents[2]


def main(command: list[str]) -> None:
    make_reachable([Path(sys.base_prefix), Path(sys.prefix), PROJECT])
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.chdir(PROJECT)
    os.environ |= {"HOME": "/", "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    os.execv(command[0], command)


def make_reachable(paths: list[Path]) -> None:
    """Replace the directories that others cannot enter by ones that hold nothing but the way to `paths`."""
    blocked = {path: closed for path in paths if (closed := _first_closed_parent(path)) is not None}
    syscalls.unshare(syscalls.CLONE_NEWNS)
    descriptors = {path: os.open(path, os.O_PATH) for path in blocked}
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    for directory in set(blocked.values()):
        syscalls.mount("way", str(directory), "tmpfs", options="mode=755")
    for path, descriptor in descriptors.items():
        path.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{descriptor}", str(path), flags=syscalls.MS_BIND | syscalls.MS_REC)


def _first_closed_parent(path: Path) -> Path | None:
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)


if __name__ == "__main__":
    main(sys.argv[1:])
