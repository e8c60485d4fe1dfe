"""The child's side of a worker process: connects to the parent and never outlives it.

    main loop ──send──► writer thread ──► socket ──► parent
    main loop ◄─queue── reader thread ◄── socket ◄── parent

`send` only queues, so a slow controller never delays an engine's step; `send_now` waits. A worker whose main
loop is an event loop gets messages from the reader thread (`pass_on`) instead of calling `receive`. The process
ends as soon as the parent is gone, busy or not.
"""

import contextlib
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from freerun.errors import FreerunError, WorkerError
from freerun.processes.frames import Alive, FrameReader, to_frame
from freerun.processes.shortage import describe_shortage

M = TypeVar("M")
F = TypeVar("F")
PR_SET_PDEATHSIG = 1
HEARTBEAT_SECONDS = 1.0
FIRST_MESSAGE_SECONDS = 60.0


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent `parent_pid` ends; call it in the child."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may already be gone. Compare with its pid, not with 1: in a container the controller may be
    # process 1, and a subreaper adopts orphans.
    if os.getppid() != parent_pid:
        os._exit(1)


def _ignore_signal(signum: int, frame: FrameType | None) -> None:
    # A handler rather than SIG_IGN: programs started by a grader would inherit SIG_IGN, and `terminate()` would
    # not end them.
    pass


class Parent(Generic[M]):
    """Typed messages from and to the process that started this one."""

    def __init__(self, sock: socket.socket, message_type: Any, *, num_threads: int = 1) -> None:
        self.num_threads = num_threads
        """Number of threads this worker may compute with: one per core if it has exclusive cores."""
        self._socket = sock
        self._reader: FrameReader[M] = FrameReader(sock, message_type)
        self._inbox: queue.SimpleQueue[M | None] = queue.SimpleQueue()
        self._take: Callable[[M], object] = self._inbox.put
        self._taking = threading.Lock()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._writer_thread = threading.Thread(target=self._write, daemon=True)
        self._writer_thread.start()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, message: Any) -> None:
        """Queue a message; raises in the caller if the message cannot be encoded."""
        self._outbox.put(to_frame(message))

    def send_now(self, message: Any) -> None:
        """Send a message before returning, ahead of those that are queued.

        For a worker that is about to block the sending thread or end the process.
        """
        self._write_frame(to_frame(message))

    def receive(self, timeout_seconds: float) -> M | None:
        """The next message; None after `timeout_seconds` (0 returns only what has arrived), or when woken."""
        try:
            return self._inbox.get(timeout=timeout_seconds) if timeout_seconds else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def pass_on(self, take: Callable[[M], object]) -> None:
        """Call `take` with each message from now on, in the reader's thread; `receive` no longer gets any."""
        with self._taking:
            self._take = take
            while (message := self.receive(0)) is not None:
                take(message)

    def wake(self) -> None:
        """Make the current or the next `receive` return without a message; may be called from any thread."""
        self._inbox.put(None)

    def receive_first(self, kind: type[F]) -> F:
        """Receive the first message, which must be of this kind."""
        first = self.receive(FIRST_MESSAGE_SECONDS)
        if not isinstance(first, kind):
            raise WorkerError(
                f"a worker waits {FIRST_MESSAGE_SECONDS:.0f} s for {kind.__name__}, got {type(first).__name__}"
            )
        return first

    def finish(self) -> None:
        """Return when everything sent so far has left the process."""
        self._outbox.put(None)
        self._writer_thread.join(timeout=5)

    def _read(self) -> None:
        try:
            while (message := self._reader.read()) is not None:
                with self._taking:
                    self._take(message)
        except BaseException:  # noqa: BLE001 - the edge of a thread
            # If only this thread died, the worker would wait forever.
            exit_with_traceback()
        os._exit(0)

    def _beat(self) -> None:
        # Sent from a thread: silence means that the process is stopped or gone, not that it is busy.
        while True:
            self.send(Alive())
            time.sleep(HEARTBEAT_SECONDS)

    def _write(self) -> None:
        while (frame := self._outbox.get()) is not None:
            self._write_frame(frame)

    def _write_frame(self, frame: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(frame)
        except OSError:
            os._exit(0)


def exit_with_traceback() -> NoReturn:
    """End the process; print one line if the user can act on the exception, else the traceback."""
    # Written to the log, whose tail the parent quotes when it reports the death.
    error = sys.exception()
    if error is not None and (shortage := describe_shortage(error)):
        print(shortage, file=sys.stderr)
    elif isinstance(error, FreerunError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    else:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def run_worker(message_type: Any, serve: Callable[[Parent[M]], None]) -> None:
    """The complete `__main__` of a worker module; argv is set by `Child.start`."""
    descriptor, cores, parent_pid = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    die_with_parent(parent_pid)
    # The controller decides when a worker ends, not a signal to the whole process group.
    signal.signal(signal.SIGINT, _ignore_signal)
    signal.signal(signal.SIGTERM, _ignore_signal)
    # Ray blocks SIGINT in its processes, and children inherit the mask: a grader could not interrupt its programs.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    # Popen made it inheritable; programs that this worker starts must not keep the connection open.
    os.set_inheritable(descriptor, False)
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    try:
        parent: Parent[M] = Parent(socket.socket(fileno=descriptor), message_type, num_threads=int(sys.argv[4]))
        serve(parent)
    except BaseException:  # noqa: BLE001 - the edge of the process
        exit_with_traceback()
    parent.finish()
    os._exit(0)
