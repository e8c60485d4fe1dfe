"""Plays environments of verifiers: their harness calls the policy over HTTP and returns the session's reward.

    rollout.episode = "verifiers:PACKAGE"
    rollout.settings = ['python="/path/to/venv/bin/python"', 'split="train"']

    agent worker ── task, base_url, key ──► verifiers_runner.py, one process ── HTTP ──► gateway of the worker
                 ◄── reward, its parts ───┘

verifiers (0.4 or newer, with uv and the package) is installed in another environment, named by the setting
`python`. The other settings are fields of the taskset's config. The field `task` of a prompt's row says which
task a session plays; `verifiers_runner.py tasks` writes such rows.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError, FreerunError, RolloutError
from freerun.rollout import verifiers_runner
from freerun.rollout.episode import Episode, Policy, Task
from freerun.types import Reward

RUNNER_START_SECONDS = 180.0
"""Time limit for importing verifiers, loading the tasks and starting the shared tool servers."""
CLOSE_SECONDS = 10.0
MAX_LINE_BYTES = 2**20


class HarnessError(FreerunError):
    """An episode of verifiers failed; at a limit of the session, the limit is the cause."""


class _Answer(msgspec.Struct, frozen=True):
    """A line of the runner's output after the first one."""

    session: int
    reward: float = 0.0
    parts: dict[str, float] = {}
    error: str = ""


@contextlib.asynccontextmanager
async def open_episode(package: str, config: RolloutConfig) -> AsyncIterator[Episode]:
    """The episode that plays this package."""
    settings = dict(config.arguments)
    python = settings.pop("python", None)
    if not isinstance(python, str) or shutil.which(python) is None:
        raise ConfigError(
            f'config: rollout.episode = "verifiers:{package}" needs the Python of an environment that has '
            f"verifiers, and {python!r} is none; set rollout.settings = ['python=\"/path/to/venv/bin/python\"']"
        )
    wanted = json.dumps({"package": package, "settings": settings})
    runner = _Runner([python, "-P", str(Path(verifiers_runner.__file__)), "play", wanted])
    try:
        await runner.start()
        yield runner.play
    finally:
        await runner.close()


class _Runner:
    """The process that plays episodes; it is started again when it has died."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def play(self, task: Task, policy: Policy) -> Reward:
        """Play one episode; raises if it fails."""
        number = task.row.get("task")
        if not isinstance(number, int):
            raise RolloutError(
                f"the row of {task.key} has no number of a task in its field task: {number!r}; write the rows "
                f"with {verifiers_runner.__file__} tasks"
            )
        await self.start()
        session = next(self._numbers)
        asked = {"base_url": policy.base_url, "api_key": policy.api_key, "model": policy.name}
        answer = await self._ask(session, {"session": session, "task": number, **asked})
        if answer.error:
            raise HarnessError(f"verifiers: {answer.error}")
        return Reward(answer.reward, answer.reward > 0, answer.parts)

    async def _ask(self, session: int, asked: dict[str, Any]) -> _Answer:
        self._waiting[session] = asyncio.get_running_loop().create_future()
        self._send(asked)
        try:
            return await self._waiting[session]
        finally:
            if not self._waiting.pop(session).done():
                self._send({"session": session})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def start(self) -> None:
        """Start the process unless it runs; return when it is ready."""
        async with self._starting:
            if self._reading is not None and not self._reading.done():
                return
            await self.close()
            pipe = asyncio.subprocess.PIPE
            # Its stderr goes to the agent worker's log.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, start_new_session=True, limit=MAX_LINE_BYTES
            )
            assert self._process.stdout is not None
            try:
                async with asyncio.timeout(RUNNER_START_SECONDS):
                    first = await self._process.stdout.readline()
            except TimeoutError:
                first = b""
            if not first:
                await self.close()
                raise ConfigError(
                    f"config: rollout.episode: {' '.join(self._command[-1:])} of verifiers did not start; the log "
                    "of the agent worker says why"
                )
            self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Pass answers on until the process ends; then fail the sessions that still wait."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = msgspec.json.decode(line, type=_Answer)
            waiting = self._waiting.get(answer.session)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(
                    RolloutError("the runner of verifiers has ended; see the agent worker's log")
                )

    async def close(self) -> None:
        """End the process by closing its input, or by force."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), CLOSE_SECONDS)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})
