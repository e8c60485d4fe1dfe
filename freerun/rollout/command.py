"""The episode of `rollout.command`: any program as the agent, which knows nothing of freerun.

    stdin    the task as JSON: text, row, key, ordinal, sample, seed, settings
    environ  OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL; the same for ANTHROPIC
    stdout   its last line is graded as the completion

The program and its process group are killed when the session ends, also at its time limit. Only the last part
of the output is kept. A nonzero exit status is a failure, reported with the last part of stderr.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple, Self

import msgspec

from freerun.errors import ConfigError, FreerunError
from freerun.rollout.episode import Episode, Policy, Task

MAX_OUTPUT_BYTES = 65_536
"""How much of the end of stdout is kept; its last line is graded."""
MAX_ERROR_BYTES = 1_000
"""How much of the end of stderr is kept; a failure quotes it."""
READ_BYTES = 65_536
PIPE_SECONDS = 1.0
"""Time limit for reading what a program left in its pipes when it ended."""


class ProgramError(FreerunError):
    """The program of `rollout.command` failed."""


def command_episode(command: str) -> Episode:
    """An episode that runs this program."""
    arguments = _arguments(command)

    async def episode(task: Task, policy: Policy) -> float:
        ended = await _run(arguments, os.environ | _endpoint(policy), _as_json(task))
        if ended.status:
            raise ProgramError(
                f"rollout.command = {command!r} ended with status {ended.status}; the end of its stderr:\n"
                f"{ended.errors or '(nothing)'}"
            )
        return await task.grade(ended.output.rstrip().rpartition("\n")[2])

    return episode


def _arguments(command: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"config: rollout.command = {command!r} cannot be read: {error}; fix it") from error
    if not arguments or shutil.which(arguments[0]) is None:
        raise ConfigError(
            f"config: rollout.command = {command!r}: there is no program {''.join(arguments[:1])!r}; install it "
            "or write its path"
        )
    return arguments


def _endpoint(policy: Policy) -> dict[str, str]:
    """Environment variables by which the SDKs of OpenAI and Anthropic find the policy; Anthropic's adds /v1."""
    url = policy.base_url
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": policy.api_key,
        "OPENAI_MODEL": policy.name,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": policy.api_key,
        "ANTHROPIC_MODEL": policy.name,
    }


def _as_json(task: Task) -> bytes:
    fields = {name: getattr(task, name) for name in ("text", "row", "key", "ordinal", "sample", "settings")}
    return msgspec.json.encode(fields | {"seed": task.random.getrandbits(32)}, enc_hook=str)


class _ProgramEnd(NamedTuple):
    status: int
    output: str
    """The last part of stdout; `errors` is that of stderr."""
    errors: str


async def _run(arguments: Sequence[str], environ: Mapping[str, str], given: bytes) -> _ProgramEnd:
    """Run a program to its end; its process group is killed too, even if this is interrupted."""
    with tempfile.TemporaryFile() as stdin:  # a pipe would have to be written while the program may not be reading
        stdin.write(given)
        stdin.seek(0)
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            arguments, stdin=stdin, stdout=pipe, stderr=pipe, env=environ, start_new_session=True
        )
    assert process.stdout is not None
    assert process.stderr is not None
    with _Pipe(process.stdout, MAX_OUTPUT_BYTES) as output, _Pipe(process.stderr, MAX_ERROR_BYTES) as errors:
        try:
            await _exit(process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the number cannot belong to another group
            process.wait()
        # A program that left the group may keep the pipes open, so the wait for their ends is short.
        await asyncio.wait([output.ended, errors.ended], timeout=PIPE_SECONDS)
        return _ProgramEnd(process.returncode, output.text, errors.text)


async def _exit(pid: int) -> None:
    """Return when the process has ended; it is not reaped yet."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class _Pipe:
    """Reads everything from a pipe and keeps the last part.

    Unlike asyncio's own streams: with those, a program ends only when all it started has closed its pipes.
    """

    def __init__(self, pipe: IO[bytes], max_bytes: int) -> None:
        self._pipe = pipe
        self._max_bytes = max_bytes
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def __enter__(self) -> Self:
        os.set_blocking(self._pipe.fileno(), False)
        self._loop.add_reader(self._pipe.fileno(), self._read)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()

    def _read(self) -> None:
        chunk = os.read(self._pipe.fileno(), READ_BYTES)
        self._kept = (self._kept + chunk)[-self._max_bytes :]
        if not chunk:
            self._loop.remove_reader(self._pipe.fileno())
            self.ended.set_result(None)
