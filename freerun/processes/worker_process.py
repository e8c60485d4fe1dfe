"""The parent's side of a worker process: start it, pass frames to and from it, end it, report why it ended.

It does not look into the frames: `local.py` decodes them, a host on another machine passes them on.

- A child gets one end of a socket pair and nothing else: no port, file or name can be left behind.
- It always dies with its parent, kill -9 included: it asks the kernel for a signal on the parent's death, and the
  socket closes (`parent.py`). The kernel ties "the parent's death" to the thread that started the child: start
  children from the event loop's thread, never from a helper thread that ends.
- It runs in its own session: Ctrl-C in the terminal reaches only the controller, and killing the group kills its
  children.
- When it dies by itself, the programs it started are killed too, except those in other sessions. For workers that
  run user code, those are killed as well (`guard.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from freerun.errors import WorkerError
from freerun.processes.frames import FrameStream
from freerun.processes.interpreter import python_command
from freerun.processes.shortage import describe_shortage

LOG_TAIL_BYTES = 4000
KEY_VARIABLE = "FREERUN_KEY"
SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", KEY_VARIABLE)
"""A cluster's secrets and the clients' key. No worker needs them, and graders run user code, which must not see
them.
"""


def _environment(inherited: Mapping[str, str], num_threads: int, cores: Sequence[int]) -> dict[str, str]:
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    # OpenMP teams that spin on shared cores are ten times slower. A child with exclusive cores may spin, which
    # halves the cost of many small operations.
    waiting = {} if cores else {"OMP_WAIT_POLICY": "PASSIVE"}
    known = {name: value for name, value in inherited.items() if name not in SECRETS}
    return known | threads | waiting | {"TOKENIZERS_PARALLELISM": "false"}


def descendants(pid: int) -> list[int]:
    """Pids of all processes below a living process, including those in other sessions."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def open_log(path: Path) -> FileIO:
    """Open a log of the run for appending, unbuffered and readable by the user only.

    Refuses a symbolic link: in a copied run it could point to any file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)


def log_tail(path: Path, start: int) -> str:
    """The end of a worker's log, phrased to be appended to a sentence; empty if there is none."""
    with contextlib.suppress(OSError), path.open("rb") as log:
        # A restarted worker appends to its predecessor's log: quote only the part of this one.
        size = path.stat().st_size
        is_cut = size < start  # `guard.py` has cut it: what is left is this worker's
        log.seek(max(0 if is_cut else start, size - LOG_TAIL_BYTES))
        tail = log.read().decode(errors="replace").strip()
        if tail:
            return f"; its log {path} ends:\n{tail}"
    return ""


class WorkerProcess:
    """One worker process and the frames to and from it."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        log_path: Path,
        log_start: int,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._log_start = log_start
        self._process = process
        self._writer = streams[1]
        self.read = FrameStream(streams[0]).read
        """Read the body of the child's next frame; None when the child is gone. Cancelling it loses no frame."""
        self._is_ended_by_us = False
        self._pidfd: int | None = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._kill_group)

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        *,
        log_path: Path,
        num_threads: int = 1,
        cores: Sequence[int] = (),
        inherited_fds: Sequence[int] = (),
        environment: Mapping[str, str] = os.environ,
        directory: str = ".",
        search_path: Sequence[str] | None = None,
    ) -> WorkerProcess:
        """Run `python -m module` in `directory` with a connected socket; `search_path` as in `python_command`."""
        try:
            return await cls._start(
                name,
                python_command(module, search_path=search_path),
                [",".join(map(str, cores)), str(os.getpid()), str(num_threads)],
                log_path,
                inherited_fds,
                env=_environment(environment, num_threads, cores),
                cwd=directory,
            )
        except OSError as error:
            raise WorkerError(f"{name} could not be started: {describe_shortage(error) or error}") from error

    @classmethod
    async def _start(
        cls,
        name: str,
        command: Sequence[str],
        arguments: Sequence[str],
        log_path: Path,
        inherited_fds: Sequence[int],
        **options: Any,
    ) -> WorkerProcess:
        """Start the command with its socket's number and the arguments; on an error, nothing is left behind."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Nothing is awaited after the process is created: a cancelled start leaves none behind.
        with theirs:
            streams = await asyncio.open_connection(sock=ours)
            try:
                with open_log(log_path) as log:
                    log_start = log.tell()
                    process = subprocess.Popen(
                        [*command, str(theirs.fileno()), *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=[theirs.fileno(), *inherited_fds],
                        start_new_session=True,
                        **options,
                    )
            except OSError:
                streams[1].close()
                raise
        try:
            return cls(name, process, log_path, log_start, streams)
        except OSError:  # too many open files to watch the process
            process.kill()
            process.wait()
            streams[1].close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def was_taken_away(self) -> bool:
        """Whether a signal that we did not send ended it: kill -9, or the kernel out of memory."""
        status = self._process.poll()
        return status is not None and status < 0 and not self._is_ended_by_us

    def write(self, frame: bytes) -> None:
        """Queue a frame without waiting. A frame to a dead child is lost: `read` reports the death."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(frame)

    def kill(self) -> None:
        is_running = self._pidfd is not None and self.is_alive
        self._is_ended_by_us |= is_running
        below = descendants(self.pid) if is_running else []
        self._kill_group()
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._writer.close()

    def _kill_group(self) -> None:
        """Kill the process group once, while its pid cannot have been reused."""
        # A forked child that outlives the process would keep the socket open, and `receive` would not end.
        if self._pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None

    async def wait(self, timeout_seconds: float) -> int | None:
        """The exit status; None if the process is still alive after `timeout_seconds`."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self.is_alive and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        return self._process.poll()

    def describe_end(self) -> str:
        status = self._process.poll()
        if status is None:
            how = "was killed" if self._is_ended_by_us else "is still alive"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        return f"{self.name} (pid {self.pid}) {how}{log_tail(self.log_path, self._log_start)}"
