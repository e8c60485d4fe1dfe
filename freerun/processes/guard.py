"""A guard for a worker that runs user code: when the worker ends, everything it started is killed too.

    controller ──► guard ──► worker ──► programs
                     └─────────────────► orphans

The controller starts the guard, and the worker is the guard's child. The guard is a subreaper: it becomes the
parent of every program below it whose parent ends, daemons and session leaders included. When the worker or the
controller ends, the guard kills them all and then ends as the worker did, with the same status or signal. It
waits in the kernel: no busy loop in the worker can delay it.

It also limits the size of the worker's log: nothing else limits what user code prints.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import stat
import sys
import time
from pathlib import Path
from typing import NoReturn

MAX_LOG_BYTES = 16 << 20
KEPT_LOG_BYTES = 4 << 20
SWEEP_SECONDS = 0.5
"""How often the guard reaps orphans and checks the log."""
KILL_SECONDS = 10.0
"""How long to wait for killed processes to disappear; another user's processes cannot be killed."""
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_ARGUMENT = 3
"""The position of the parent's pid in a worker's argv (`parent.py`)."""
_WORKER, _CONTROLLER, _LOG = 0, 1, 2
"""File descriptors of the guard."""


def leave_guard() -> None:
    """Fork; returns in the child, while this process becomes its guard. Call it before threads are started."""
    if os.getpgrp() != os.getpid():
        return  # started by hand, in the shell's process group
    controller = int(sys.argv[_PARENT_ARGUMENT])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    worker = os.fork()
    if worker:
        _guard(worker, controller)
    sys.argv[_PARENT_ARGUMENT] = str(os.getppid())


def _guard(worker: int, controller: int) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the controller is gone already
        ends = [os.pidfd_open(worker), os.pidfd_open(controller)]
        if os.getppid() == controller:
            _watch(ends, worker)
    _end_as(_kill_all(worker))


def _watch(ends: list[int], worker: int) -> None:
    """Return when the worker or the controller has ended."""
    for descriptor, end in enumerate(ends):
        os.dup2(end, descriptor)
    # Above all the socket to the controller: if it stayed open here, it would hide the worker's end.
    _close_from(_LOG + 1)
    while not select.select([_WORKER, _CONTROLLER], [], [], SWEEP_SECONDS)[0]:
        _reap_orphans(worker)
        _bound_log()


def _close_from(first: int) -> None:
    """Close all open descriptors from `first` on; trying every number up to the limit could take a minute."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor >= first:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(descriptor)


def _reap_orphans(worker: int) -> None:
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (found := os.waitid(os.P_ALL, 0, ended)) is not None and found.si_pid != worker:
        os.waitpid(found.si_pid, 0)


def _bound_log() -> None:
    """Cut a log that is too long down to its last part."""
    with contextlib.suppress(OSError):  # the guard must survive any trouble with the log
        found = os.fstat(_LOG)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= MAX_LOG_BYTES:
            return
        # Reopened: our descriptor, a copy of the worker's, can only append.
        with open(f"/proc/self/fd/{_LOG}", "r+b") as log:
            log.seek(found.st_size - KEPT_LOG_BYTES)
            end = log.read(KEPT_LOG_BYTES)
            log.seek(0)
            log.write(f"[cut: this log was longer than {MAX_LOG_BYTES >> 20} MiB]\n".encode() + end)
            log.truncate()


def _kill_all(worker: int) -> int:
    """Kill everything below this process; returns the worker's wait status."""
    status = signal.SIGKILL.value
    deadline = time.monotonic() + KILL_SECONDS
    # Children of a killed process become ours, so the loop reaches all of them.
    while (children := _children()) and time.monotonic() < deadline:
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == worker else status
            if not _children():
                break
        time.sleep(0.001)
    return status


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _end_as(status: int) -> NoReturn:
    """End this process with the worker's exit status or signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler to be reset
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
