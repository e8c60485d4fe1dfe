"""A guard for a Ray cluster that freerun started: when the controller is gone, all of the cluster goes at once.

Ray ends most of its processes itself when the one that started it is killed, but leaves some of its helpers for a
minute. The guard knows them while the controller lives, by looking every second at what runs below it. Run as
`python -m freerun.backends.ray.guard`; it ends with the controller in every case.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys

import psutil

from freerun.processes.interpreter import python_command

LOOK_SECONDS = 1.0


def start_guard() -> None:
    """Start the guard of this process."""
    subprocess.Popen(
        [*python_command("freerun.backends.ray.guard"), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is for the controller
    )


def _watch(controller_pid: int) -> None:
    below: set[psutil.Process] = set()
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        end, controller = os.pidfd_open(controller_pid), psutil.Process(controller_pid)
        while os.getppid() == controller_pid and not select.select([end], [], [], LOOK_SECONDS)[0]:
            below = {process for process in below if process.is_running()} | set(
                controller.children(recursive=True)
            )
    for process in below:
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error):
                process.kill()  # no other that has got its pid since: psutil compares when it was started


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
