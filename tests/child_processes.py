"""A worker that does what it is told, and what tests of its process need: start it, watch it end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from freerun.processes.child import Child

PATIENCE_SECONDS = 30.0

WORKER = """
import os, re, signal, subprocess, sys, threading, time
import msgspec
from freerun.processes.parent import run_worker

class Do(msgspec.Struct, tag="do"):
    what: str
    payload: bytes = b""

class Did(msgspec.Struct, tag="did"):
    what: str
    payload: bytes = b""

def serve(parent):
    parent.send(Did("started"))
    while True:
        message = parent.receive(3600)
        if message is None:
            continue
        if message.what == "return":
            parent.send(Did("last words", b"x" * 1_000_000))
            return
        actions.get(message.what, lambda p, m: p.send(Did(m.what, m.payload)))(parent, message)

def flood(parent, message):
    while True:
        parent.send(Did("flood", b"x" * 1_000_000))
        time.sleep(0.01)

def fork(parent, message):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    parent.send(Did(str(pid)))

def run(arguments, **options):
    return lambda parent, message: parent.send(Did(str(subprocess.Popen(arguments, **options).pid)))

def terminate(parent, message):
    program = subprocess.Popen(["sleep", "1000"])
    program.terminate()
    parent.send(Did(str(program.wait())))

def fail(parent, message):
    raise RuntimeError("the reason it failed")

def placement(parent, message):
    parent.send(Did(str(os.sched_getaffinity(0)) + os.environ["OMP_NUM_THREADS"]))

actions = {
    "busy": lambda p, m: re.match(r"(a+)+$", "a" * 60 + "b"),  # a loop in C that never releases the GIL
    "stopped": lambda p, m: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda p, m: time.sleep(1000),
    "flood": flood,
    "fork": fork,
    "new session": run(["sleep", "1000"], start_new_session=True),
    "terminate": terminate,
    "fail": fail,
    "exit 7": lambda p, m: os._exit(7),
    "real-time signal": lambda p, m: os.kill(os.getpid(), 40),
    "unsendable": lambda p, m: p.send(object()),
    "garbage": lambda p, m: p.send({"type": "nonsense"}),
    "placement": placement,
}

if __name__ == "__main__":
    run_worker(Do, serve)
"""


class Do(msgspec.Struct, tag="do"):
    what: str
    payload: bytes = b""


class Did(msgspec.Struct, tag="did"):
    what: str
    payload: bytes = b""


def write_worker(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the worker a module that children find."""
    (directory / "the_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(directory))


def is_running(pid: int) -> bool:
    """A zombie whose new parent has not looked yet does not run any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        time.sleep(0.02)


def with_child(tmp_path: Path, act: Callable[[Child[Did]], Awaitable[None]], **options: object) -> None:
    """Run `act` against a started worker, and leave nothing behind."""

    async def main() -> None:
        child: Child[Did] = await Child.start(
            "worker-0", "the_worker", receives=Did, log_path=tmp_path / "logs" / "worker-0.log", **options
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await child.receive() == Did("started")
                await act(child)
        finally:
            child.kill()
            await child.wait(PATIENCE_SECONDS)
        assert not is_running(child.pid)

    asyncio.run(main())
