"""A worker that does what it is told; each worker of the tests of processes runs this module."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from freerun.errors import ModelError
from freerun.processes.parent import Parent, run_worker


class Do(msgspec.Struct, tag="do"):
    what: str
    payload: bytes = b""


class Did(msgspec.Struct, tag="did"):
    what: str
    payload: bytes = b""


Action = Callable[[Parent[Do], Do], object]


def serve(parent: Parent[Do]) -> None:
    parent.send(Did("started"))
    while True:
        message = parent.receive(3600)
        if message is None:
            continue
        if message.what == "return":
            parent.send(Did("last words", b"x" * 1_000_000))
            return
        ACTIONS.get(message.what, echo)(parent, message)


def echo(parent: Parent[Do], message: Do) -> None:
    parent.send(Did(message.what, message.payload))


def serve_in_event_loop(parent: Parent[Do], message: Do) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        parent.pass_on(lambda message: loop.call_soon_threadsafe(echo, parent, message))
        await loop.create_future()

    asyncio.run(main())


def flood(parent: Parent[Do], message: Do) -> None:
    while True:
        parent.send(Did("flood", b"x" * 1_000_000))
        time.sleep(0.01)


def fork(parent: Parent[Do], message: Do) -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    parent.send(Did(str(pid)))


def run(arguments: list[str], **options: Any) -> Action:
    return lambda parent, message: parent.send(Did(str(subprocess.Popen(arguments, **options).pid)))


def terminate(parent: Parent[Do], message: Do) -> None:
    program = subprocess.Popen(["sleep", "1000"])
    program.terminate()
    parent.send(Did(str(program.wait())))


def imports(parent: Parent[Do], message: Do) -> None:
    import random

    import freerun

    parent.send(Did("\n".join([os.pathsep.join(sys.path), freerun.__file__, random.__file__])))


def fail(parent: Parent[Do], message: Do) -> None:
    raise RuntimeError("the reason it failed")


def refuse(parent: Parent[Do], message: Do) -> None:
    raise ModelError("the model is damaged; restore it")


def no_threads(parent: Parent[Do], message: Do) -> None:
    raise RuntimeError("can't start new thread")


def placement(parent: Parent[Do], message: Do) -> None:
    parent.send(Did(str(os.sched_getaffinity(0)) + os.environ["OMP_NUM_THREADS"]))


ACTIONS: dict[str, Action] = {
    "busy": lambda p, m: re.match(r"(a+)+$", "a" * 60 + "b"),  # a loop in C that never releases the GIL
    "stopped": lambda p, m: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda p, m: time.sleep(1000),
    "event loop": serve_in_event_loop,
    "flood": flood,
    "fork": fork,
    "new session": run(["sleep", "1000"], start_new_session=True),
    "terminate": terminate,
    "fail": fail,
    "refuse": refuse,
    "exit 7": lambda p, m: os._exit(7),
    "real-time signal": lambda p, m: os.kill(os.getpid(), 40),
    "unsendable": lambda p, m: p.send(object()),
    "garbage": lambda p, m: p.send({"type": "nonsense"}),
    "placement": placement,
    "imports": imports,
    "no threads": no_threads,
}

if __name__ == "__main__":
    run_worker(Do, serve)
