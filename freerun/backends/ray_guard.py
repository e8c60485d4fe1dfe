"""A guard for a Ray cluster that freerun started: when the controller is gone, all of the cluster goes at once.

Ray ends most of its processes itself when the one that started it is killed, but leaves some of its helpers for a
minute. The token, made for this cluster alone and inherited by all of its processes, tells which they are. Run as
`python -m freerun.backends.ray_guard`; it ends with the controller in every case.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from freerun.backends.ray_access import TOKEN_VARIABLE

NUM_SWEEPS = 3
"""A process that is being started while the others are killed is found by the next one."""


def start_guard() -> None:
    """Start the guard of this process; the token must be in the environment."""
    subprocess.Popen(
        [sys.executable, "-m", "freerun.backends.ray_guard", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is for the controller
    )


def _processes_with(token: str) -> list[int]:
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return [pid for pid in found if pid != os.getpid()]


def _watch(controller_pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        controller = os.pidfd_open(controller_pid)
        if os.getppid() == controller_pid:
            select.select([controller], [], [])
    for _ in range(NUM_SWEEPS):
        for pid in _processes_with(os.environ[TOKEN_VARIABLE]):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
