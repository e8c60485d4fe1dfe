"""A worker process on this machine: typed messages to and from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

from freerun.processes.frames import Alive, MessageDecoder, to_frame
from freerun.processes.patience import awake_clock
from freerun.processes.worker_process import WorkerProcess

M = TypeVar("M")


class Child(Generic[M]):
    """Implements `link.Link`."""

    def __init__(self, process: WorkerProcess, message_type: Any) -> None:
        self.name = process.name
        self._process = process
        self._decoder: MessageDecoder[M | Alive] = MessageDecoder(message_type | Alive)
        self._clock = awake_clock()
        self._last_heard = self._clock.time()

    @classmethod
    async def start(cls, name: str, module: str, *, receives: Any, log_path: Path, **options: Any) -> Child[M]:
        """Run `python -m module` as a `WorkerProcess`; `receives` is the union of its messages to us."""
        return cls(await WorkerProcess.start(name, module, log_path=log_path, **options), receives)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    @property
    def is_placed(self) -> bool:
        return True

    @property
    def was_taken_away(self) -> bool:
        return self._process.was_taken_away

    def send(self, message: Any) -> None:
        """Queue a message; never waits. To a dead child it is lost: `receive` reports the death."""
        self._process.write(to_frame(message))  # a message that cannot be encoded is a bug, and raises

    async def receive(self) -> M | None:
        """The child's next message, or None when it is gone; cancelling it loses no message."""
        while (body := await self._process.read()) is not None:
            self._last_heard = self._clock.time()
            message = self._decoder.decode(body)
            if not isinstance(message, Alive):
                return message
        return None

    @property
    def seconds_silent(self) -> float:
        """Awake seconds since its last message; a healthy child sends one every second.

        Only meaningful while a task is in `receive`.
        """
        return self._clock.time() - self._last_heard

    def kill(self) -> None:
        """Kill the process and all that it started; a no-op when it has ended."""
        self._process.kill()

    async def wait(self, timeout_seconds: float) -> int | None:
        """Exit status, or None if it is still alive after `timeout_seconds`."""
        return await self._process.wait(timeout_seconds)

    def describe_end(self) -> str:
        """How the process ended, and the end of its log: the traceback, if it left one."""
        return self._process.describe_end()
