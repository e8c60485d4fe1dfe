"""The fork server: a small process that forks one candidate, and its examiner, per request.

    caller ◄─ {missing feature: reason} ─────────── server     once
    caller ── limits + descriptors ───────────────► server ── fork ──► executor ── fork ──► candidate, examiner
    caller ◄─ {timed_out, statuses, problem} ──────────────────────── executor
    caller ◄─ {} ────────────────────────────────── server     the executor is gone

The memory of a candidate is a copy of the server's, so the server must never know anything about an execution.
It reads neither programs nor tests: it passes their file descriptors on, each to the one child that may have
it. It does not learn how an execution ended: a process forked for each execution waits and reports. It contains
nothing of the caller, because it was started by exec. It is process 1 of its own pid namespace: when it dies,
the kernel kills everything in it.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from freerun.sandbox import candidate, examiner, home, jail, landlock, seccomp, syscalls
from freerun.sandbox.limits import MAX_PROCESSES, Limits

# Imported once here, not by every program; modules with shared libraries could not be imported later.
PRELOADED = (
    "abc array ast bisect bz2 calendar cmath collections.abc contextlib copy csv ctypes dataclasses datetime "
    "decimal enum fractions functools hashlib heapq inspect io itertools json lzma math numbers operator random "
    "re sqlite3 statistics string struct textwrap threading time traceback types typing unicodedata uuid zlib"
)
_MAX_REQUEST_BYTES = 4096
_MAX_DESCRIPTORS = 4
_SETUP_DONE = b"ready"


class _Child(NamedTuple):
    pid: int
    setup: int
    """Read end of the pipe in which the child reports that it is restricted, or why it could not be."""


class Server:
    """Executes requests; an executor uses it for one request and exits."""

    def __init__(self, walls: jail.Walls, *, uid: int) -> None:
        self._walls = walls
        self._uid = uid
        # `unshare` sets the pid namespace of the next fork; this resets it.
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._own_pids = os.open("/proc/self/ns/pid", flags) if walls.has_namespaces else None

    def execute(self, allowed: Limits, descriptors: list[int]) -> dict[str, Any]:
        """Run a program (program, output), and its tests (tests, verdict) if there are any."""
        program, output, *examination = descriptors
        streams = (None, output, output, program)
        if not examination:
            children = [self._fork(candidate.run, 0, streams, allowed)]
        else:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                children = [self._fork(candidate.answer, 0, (*streams, ours.fileno()), allowed)]
                silent = (None, None, None, *examination, theirs.fileno())
                children.append(self._fork(examiner.examine, 1, silent, allowed))
        # Wait for all before the first ends: tests that need no program may finish before it is restricted.
        problems = [_setup_problem(child) for child in children]
        # The last one decides: the tests, or the program if it is only run.
        is_over = _wait_for_end(children[-1].pid, allowed.seconds)
        return {
            "timed_out": not is_over,
            "statuses": [_end(child) for child in children],
            "problem": next(filter(None, problems), ""),
        }

    def _fork(
        self, main: Callable[[], None], role: int, descriptors: tuple[int | None, ...], allowed: Limits
    ) -> _Child:
        setup, says_setup = os.pipe()
        cell = jail.Cell(
            uid=self._uid + role if self._uid else 0,
            descriptors=(*descriptors, says_setup),
            has_directory=role == 0,
            # The tests may have as many again: a program that takes its full share must not block them.
            max_processes=MAX_PROCESSES * (1 + role),
        )
        if self._own_pids is not None:
            syscalls.unshare(syscalls.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _be_child(main, self._walls, cell, allowed)
        os.close(says_setup)
        if self._own_pids is not None:
            syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
        return _Child(pid, setup)


def _be_child(main: Callable[[], None], walls: jail.Walls, cell: jail.Cell, allowed: Limits) -> NoReturn:
    status = 1
    says_setup = len(cell.descriptors) - 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        jail.keep_only(tuple(null if given is None else given for given in cell.descriptors))
        try:
            jail.lock(walls, cell, allowed)
        except BaseException as error:
            os.write(says_setup, f"{error}".encode())
            raise
        os.write(says_setup, _SETUP_DONE)
        os.close(says_setup)
        gc.enable()
        main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(status & 0xFF)


def _wait_for_end(pid: int, seconds: float) -> bool:
    """Whether the process ended in time."""
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    is_over = bool(poll.poll(seconds * 1000))
    os.close(descriptor)
    return is_over


def _setup_problem(child: _Child) -> str:
    """Wait until a child is restricted; returns why it could not be (then it runs nothing), empty on success."""
    with os.fdopen(child.setup, "rb") as pipe:
        said = pipe.read()
    if said == _SETUP_DONE:
        return ""
    return said.decode(errors="replace") or "it died while it was being locked up"


def _end(child: _Child) -> int:
    """Kill a child, if it still runs, and everything it started; returns its status when they are gone."""
    # As process 1 of its namespace it is only gone when all other processes in it are.
    os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    return os.waitstatus_to_exitcode(status)


def main(control: int) -> None:
    """The process that the caller starts: forks the server and waits for it."""
    syscalls.die_with_parent()
    _die_first()
    _preload()
    uid = home.first_uid()
    missing = _missing_features(has_uids=bool(uid))
    if "namespaces" not in missing:
        home.leave_namespaces(has_uids=bool(uid))
    pid = os.fork()
    if pid:
        os.close(control)
        _, status = os.waitpid(pid, 0)
        os._exit(0 if status == 0 else 1)
    # The kernel sends the signal from outside the namespace, so it reaches even process 1.
    syscalls.die_with_parent()
    walls = jail.Walls(
        has_namespaces="namespaces" not in missing,
        has_landlock="landlock" not in missing,
        system_calls=b"" if "seccomp" in missing else seccomp.assemble(has_namespaces="namespaces" not in missing),
    )
    server = Server(walls, uid=uid)
    if walls.has_namespaces:
        home.enter_empty_root()
    _serve(socket.socket(fileno=control), server, missing)


def _serve(control: socket.socket, server: Server, missing: dict[str, str]) -> None:
    # For the children: the output of a killed child must not be lost.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.collect()
    gc.freeze()  # garbage collection in a child must not touch, and so copy, all these pages
    control.send(json.dumps(missing).encode())
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
        if not request:
            return  # the caller is gone
        # Process ids are not kept: they would tell how many processes an earlier program has started.
        if os.fork() == 0:
            _report(control, server, request, descriptors)
        with contextlib.suppress(ChildProcessError):
            while True:  # process 1 of a namespace also inherits the children of a killed executor
                os.wait()
        _close(descriptors)
        control.send(b"{}")


def _close(descriptors: list[int]) -> None:
    # In a function: a variable left in `_serve` would tell the next program that it is not the first.
    for descriptor in descriptors:
        os.close(descriptor)


def _report(control: socket.socket, server: Server, request: bytes, descriptors: list[int]) -> NoReturn:
    """An executor: runs one request, reports, and exits."""
    try:
        syscalls.die_with_parent()
        report = server.execute(Limits(*json.loads(request)), descriptors)
        control.send(json.dumps(report).encode())
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()  # the server tells the caller that there is no report
    finally:
        os._exit(0)


def _die_first() -> None:
    """When the machine runs out of memory, the kernel should kill a program and not the trainer."""
    # Not a security measure: if /proc cannot be written, the kernel chooses by size.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _preload() -> None:
    for name in PRELOADED.split():
        with contextlib.suppress(ImportError):  # a Python built without it
            importlib.import_module(name)
    # The directory of freerun was only needed to start this process.
    sys.path[:] = [home.STANDARD_LIBRARY, f"{home.STANDARD_LIBRARY}/lib-dynload"]


def _missing_features(*, has_uids: bool) -> dict[str, str]:
    missing = {}
    probes: dict[str, Callable[[], object]] = {
        "namespaces": lambda: _try_namespaces(has_uids=has_uids),
        "landlock": landlock.abi_version,
        "seccomp": seccomp.check_available,
    }
    for name, probe in probes.items():
        try:
            probe()
        except OSError as error:
            missing[name] = error.strerror or str(error)
    return missing


def _try_namespaces(*, has_uids: bool) -> None:
    """Try in a separate child: some systems allow a user namespace and then refuse everything in it."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            home.leave_namespaces(has_uids=has_uids)
            home.enter_empty_root()
        except OSError as error:
            os.write(writes, str(error.strerror).encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(pid, 0)
    with os.fdopen(reads) as pipe:
        problem = pipe.read()
    if problem:
        raise OSError(errno.EPERM, problem)
