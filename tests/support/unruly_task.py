"""A user's grader that does whatever the completion tells it to, the worst included."""

import asyncio
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from freerun.processes.frames import to_frame
from freerun.reward.messages import Graded
from freerun.types import Reward


def grade(prompt: str, completion: str, answer: str) -> Any:
    return ACTIONS[completion.strip()]()


async def grade_async(prompt: str, completion: str, answer: str) -> Any:
    await asyncio.sleep(0)
    if completion != "same loop":
        return grade(prompt, completion, answer)
    LOOPS.add(asyncio.get_running_loop())
    return len(LOOPS) == 1


LOOPS: set[asyncio.AbstractEventLoop] = set()


def sleep_deaf() -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Path("deaf.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(1000)


def busy() -> NoReturn:
    while True:
        pass


def start_process() -> bool:
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    Path("started.pid").write_text(str(pid))
    return True


def start_process_and_hang() -> None:
    start_process()
    time.sleep(1000)


def start_session_and_hang() -> None:
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("started.pid").write_text(str(program.pid))
    time.sleep(1000)


def start_session_and_die() -> None:
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("started.pid").write_text(str(program.pid))
    os._exit(3)


def start_daemon() -> bool:
    """A process in a session of its own whose parents have ended."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if (daemon := os.fork()) == 0:
            os.closerange(0, 100)
            time.sleep(1000)
        Path("started.pid").write_text(str(daemon))
        os._exit(0)
    os.waitpid(child, 0)
    return True


def start_daemon_and_hang() -> None:
    start_daemon()
    time.sleep(1000)


def start_daemon_and_die() -> None:
    start_daemon()
    os._exit(3)


def flood_log() -> bool:
    for _ in range(40):
        os.write(2, b"y" * (1 << 20))
    while os.fstat(2).st_size > 16 << 20:
        time.sleep(0.01)
    print("after the flood")
    return True


def fork_that_comes_back() -> bool:
    pid = os.fork()
    if pid == 0:
        return True
    os.waitpid(pid, 0)
    return False


def die_once() -> bool:
    marker = Path("died")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def wait_for_file() -> bool:
    Path("grading.pid").write_text(str(os.getpid()))
    while not Path("go").exists():
        time.sleep(0.01)
    return True


def chatter() -> bool:
    for _ in range(20000):
        print("x" * 100)
    os.write(1, b"to the descriptor")
    subprocess.run(["echo", "from a program"], check=True)
    return True


def raise_deeply(depth: int = 50) -> None:
    if depth == 0:
        raise KeyError("the bottom")
    raise_deeply(depth - 1)


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def recurse() -> Any:
    return recurse()


def close_everything() -> bool:
    os.closerange(3, 100)
    return True


def send_grade(number: int) -> bool:
    """Say that a job was right, as if the worker said so; then find this one wrong."""
    frame = to_frame(Graded(number, (Reward(5.0, True),)))
    opened = Path("/proc/self/fd")
    sockets = [number for number in sorted(map(int, os.listdir(opened))) if (opened / str(number)).is_socket()]
    os.write(sockets[0], frame)
    return False


def patch_main() -> bool:
    """Replace everything in __main__ by a function that finds all completions right."""
    main = sys.modules["__main__"]
    for name in [name for name in vars(main) if not name.startswith("__")]:
        setattr(main, name, lambda *_, **__: Reward(5.0, True))
    return False


def number_of_job() -> int:
    frame: Any = sys._getframe()
    while "job" not in frame.f_locals:
        frame = frame.f_back
    number: int = frame.f_locals["job"].number
    return number


def send_stray_grade_once() -> bool:
    marker = Path("sent")
    if not marker.exists():
        marker.touch()
        send_grade(10**9)
    return True


def nap() -> bool:
    time.sleep(0.2)
    return True


def leave_a_mark() -> bool:
    Path("mark").touch()
    return True


ACTIONS: dict[str, Callable[[], Any]] = {
    "right": lambda: True,
    "wrong": lambda: False,
    "half": lambda: 0.5,
    "parts": lambda: {"solved": True, "brevity": -0.5},
    "part named exact": lambda: {"exact": 1.0},
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "none": lambda: None,
    "text": lambda: "1",
    "raise": raising(ValueError("a bad idea")),
    "raise deeply": raise_deeply,
    "raise text that cannot be encoded": raising(ValueError("\udc80")),
    "raise a megabyte": raising(ValueError("y" * 1_000_000)),
    "interrupt": raising(KeyboardInterrupt()),
    "sys.exit": lambda: sys.exit(3),
    "allocate": lambda: bytearray(1 << 62),
    "recurse": recurse,
    "os._exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "close everything": close_everything,
    "sleep": lambda: time.sleep(1000),
    "nap": nap,
    "leave a mark": leave_a_mark,
    "busy": busy,
    "busy in C": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "deaf": sleep_deaf,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "start process": start_process,
    "start process and hang": start_process_and_hang,
    "start session and hang": start_session_and_hang,
    "start session and die": start_session_and_die,
    "start daemon": start_daemon,
    "start daemon and hang": start_daemon_and_hang,
    "start daemon and die": start_daemon_and_die,
    "flood the log": flood_log,
    "fork that comes back": fork_that_comes_back,
    "is light": lambda: not {"torch", "transformers", "sympy", "math_verify", "reasoning_gym"} & set(sys.modules),
    "die once": die_once,
    "wait for file": wait_for_file,
    "chatter": chatter,
    "patch main": patch_main,
    "send a grade of no job": lambda: send_grade(10**9),
    "send its grade twice": lambda: send_grade(number_of_job()),
    "send a stray grade once": send_stray_grade_once,
}
