"""A guard for a Ray cluster that freerun started: when the controller dies, it kills the whole cluster at once.

When the process that started it is killed, Ray ends most of its processes but leaves some helpers for a minute.
While the controller lives, the guard lists its descendants every second. Run as
`python -m freerun.backends.ray.guard`; it always ends with the controller.
"""

import contextlib
import os
import select
import subprocess
import sys

import psutil

from freerun.processes.interpreter import python_command

GUARD_SECONDS = 1.0


def start_guard() -> None:
    subprocess.Popen(
        [*python_command("freerun.backends.ray.guard"), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is meant for the controller
    )


def _watch(controller_pid: int) -> None:
    below: set[psutil.Process] = set()
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        end, controller = os.pidfd_open(controller_pid), psutil.Process(controller_pid)
        while os.getppid() == controller_pid and not select.select([end], [], [], GUARD_SECONDS)[0]:
            below = {process for process in below if process.is_running()} | set(
                controller.children(recursive=True)
            )
    for process in below:
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error):
                process.kill()  # never a later process with the same pid: psutil compares start times


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
