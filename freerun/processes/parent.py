"""The child's side of a worker process: connect to the parent, never outlive it, never wait for it.

    main loop ──send──► writer thread ──► socket ──► parent
    main loop ◄─queue── reader thread ◄── socket ◄── parent

Sending only queues, so that a slow controller never holds up an engine's step. When the parent is gone
the process ends at once, whatever it is doing: there is nobody left to work for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from freerun.processes.frames import FrameReader, to_frame

M = TypeVar("M")
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent was gone before we asked
        os._exit(1)


class Parent(Generic[M]):
    """Typed messages from and to the process that started this one."""

    def __init__(self, sock: socket.socket, message_type: Any) -> None:
        self._socket = sock
        self._reader: FrameReader[M] = FrameReader(sock, message_type)
        self._inbox: queue.SimpleQueue[M] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._writer_thread = threading.Thread(target=self._write, daemon=True)
        self._writer_thread.start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Any) -> None:
        self._outbox.put(message)

    def receive(self, timeout_seconds: float) -> M | None:
        """The next message, or None if there is none within `timeout_seconds` (0: only what has arrived)."""
        try:
            return self._inbox.get(timeout=timeout_seconds) if timeout_seconds else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def finish(self) -> None:
        """Return when everything sent so far has left the process."""
        self._outbox.put(None)
        self._writer_thread.join(timeout=5)

    def _read(self) -> None:
        while (message := self._reader.read()) is not None:
            self._inbox.put(message)
        os._exit(0)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._socket.sendall(to_frame(message))
            except OSError:
                os._exit(0)


def run_worker(message_type: Any, serve: Callable[[Parent[M]], None]) -> None:
    """The whole `__main__` of a worker module: argv is the socket's descriptor and the cores to stay on."""
    _die_with_parent()
    # The controller decides when a worker ends; a signal sent to the whole group must not pre-empt it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptor, cores = int(sys.argv[1]), sys.argv[2]
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    parent: Parent[M] = Parent(socket.socket(fileno=descriptor), message_type)
    try:
        serve(parent)
    except BaseException:
        # Into the log, whose tail the parent quotes when it reports the death.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    parent.finish()
    os._exit(0)
