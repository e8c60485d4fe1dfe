"""The parent's side of a worker process: start it, talk to it, end it, and know why it ended.

A child gets one end of a socket pair and nothing else: no port, no file, no name that could be left
behind. It dies with its parent in every case, kill -9 included: it asks the kernel for a signal on the
parent's death, and the socket closes (`parent.py`). It runs in its own session, so that Ctrl-C in the
terminal reaches only the controller, and so that killing it takes its own children along. What it
started is killed too when it dies by itself, except for what moved to a session of its own.

The kernel ties "the parent's death" to the thread that started the child: start children from the
thread of the event loop, never from a helper thread that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from freerun.processes.frames import Alive, StreamFrameReader, to_frame

M = TypeVar("M")
LOG_TAIL_BYTES = 4000


def _environment(num_threads: int, cores: Sequence[int]) -> dict[str, str]:
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    # OpenMP teams that spin while they wait and share cores with others are ten times slower; a child that
    # has its cores to itself may spin, which halves the cost of many small operations.
    waiting = {} if cores else {"OMP_WAIT_POLICY": "PASSIVE"}
    return os.environ | threads | waiting | {"TOKENIZERS_PARALLELISM": "false"}


def _descendants(pid: int) -> list[int]:
    """Pids of everything below a living process, those that made sessions of their own included."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


class Child(Generic[M]):
    """One worker process and the typed messages to and from it."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        log_path: Path,
        log_start: int,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        message_type: Any,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._log_start = log_start
        self._process = process
        self._writer = streams[1]
        self._frames: StreamFrameReader[M] = StreamFrameReader(streams[0], message_type)
        self._pidfd: int | None = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._last_heard = self._loop.time()
        self._loop.add_reader(self._pidfd, self._kill_group)

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        *,
        receives: Any,
        log_path: Path,
        num_threads: int = 1,
        cores: Sequence[int] = (),
        inherited_fds: Sequence[int] = (),
    ) -> Child[M]:
        """Run `python -m module` with a connected socket; `receives` is the union of its messages to us."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        # Nothing is awaited once the process exists, so a cancelled start leaves none behind.
        with theirs:
            streams = await asyncio.open_connection(sock=ours)
            with log_path.open("ab") as log:
                log_start = log.tell()
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        module,
                        str(theirs.fileno()),
                        ",".join(map(str, cores)),
                        str(os.getpid()),
                        str(num_threads),
                        ",".join(map(str, inherited_fds)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno(), *inherited_fds],
                    env=_environment(num_threads, cores),
                    start_new_session=True,
                )
        return cls(name, process, log_path, log_start, streams, receives)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_placed(self) -> bool:
        return True

    def send(self, message: Any) -> None:
        """Queue a message; never waits. A dead child swallows it: `receive` tells of the death."""
        frame = to_frame(message)  # a message that cannot be encoded is our defect, and raises
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(frame)

    async def receive(self) -> M | None:
        """The child's next message, or None when it is gone; cancelling it loses no message."""
        while True:
            message = await self._frames.read()
            self._last_heard = self._loop.time()
            if not isinstance(message, Alive):
                return message

    @property
    def seconds_silent(self) -> float:
        """Time since it last said anything; a healthy child says once a second that it is alive.

        Only meaningful while somebody is in `receive`.
        """
        return self._loop.time() - self._last_heard

    def kill(self) -> None:
        """End the process and all that it started, at once; a no-op when it has ended."""
        descendants = _descendants(self.pid) if self._pidfd is not None and self.is_alive else []
        self._kill_group()
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._writer.close()

    def _kill_group(self) -> None:
        """Kill the process, or what it left behind when it ended: once, while its pid cannot be another's."""
        # A forked child that outlives the process would also hold the socket open, and `receive` with it.
        if self._pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None

    async def wait(self, timeout_seconds: float) -> int | None:
        """Exit status, or None if it is still alive after `timeout_seconds`."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self.is_alive and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        return self._process.poll()

    def describe_end(self) -> str:
        """How the process ended, and the end of its log: the traceback, if it left one."""
        status = self._process.poll()
        if status is None:
            how = "is still alive"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        return f"{self.name} (pid {self.pid}) {how}{self._log_tail()}"

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            # A restarted worker appends to its predecessor's log: quote only what is its own.
            log.seek(max(self._log_start, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
            if tail:
                return f"; its log {self.log_path} ends:\n{tail}"
        return ""
