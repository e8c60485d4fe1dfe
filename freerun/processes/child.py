"""The parent's side of a worker process: start it, talk to it, end it, and know why it ended.

A child gets one end of a socket pair and nothing else: no port, no file, no name that could be left
behind. It dies with its parent in every case, kill -9 included: it asks the kernel for a signal on the
parent's death, and the socket closes (`parent.py`). It runs in its own session, so that Ctrl-C in the
terminal reaches only the controller, and so that killing it takes its own children along.
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

from freerun.processes.frames import read_frame, to_frame
from freerun.types import decoder_for

M = TypeVar("M")
LOG_TAIL_BYTES = 4000


def _environment(num_threads: int) -> dict[str, str]:
    # Two OpenMP teams that spin on the same cores collapse (DESIGN.md 7): each child gets its own number
    # of threads, and waits passively.
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return os.environ | threads | {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


class Child(Generic[M]):
    """One worker process and the typed messages to and from it."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        log_path: Path,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        message_type: Any,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process
        self._reader, self._writer = streams
        self._decoder = decoder_for(message_type)

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
        with theirs, log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), ",".join(map(str, cores))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), *inherited_fds],
                env=_environment(num_threads),
                start_new_session=True,
            )
        streams = await asyncio.open_connection(sock=ours)
        return cls(name, process, log_path, streams, receives)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Any) -> None:
        """Queue a message; never waits. A dead child swallows it: `receive` tells of the death."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(to_frame(message))

    async def receive(self) -> M | None:
        """The child's next message, or None when it is gone."""
        return await read_frame(self._reader, self._decoder)

    def kill(self) -> None:
        """End the process and all that it started, at once; a no-op when it has ended."""
        # The group outlives its leader: children that it left behind are killed too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._writer.close()

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
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"exited with status {status}"
        return f"{self.name} (pid {self.pid}) {how}{self._log_tail()}"

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
            if tail:
                return f"; its log {self.log_path} ends:\n{tail}"
        return ""
