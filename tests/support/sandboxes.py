"""What the tests of the sandbox share: a right and a wrong answer to one question, and a look for left-overs."""

import contextlib
import os
from pathlib import Path

from freerun.reward.code import judge
from freerun.sandbox.sandbox import Sandbox, Verdict

TOKEN = f"freerun-escape-{os.getpid()}"
"""In the name of whatever a test program tries to leave on the machine."""
TESTS = "assert square(3) == 9\nassert square(-4) == 16\nassert [square(n) for n in range(4)] == [0, 1, 4, 9]"
RIGHT = "def square(x):\n    return x * x\n"
WRONG = "def square(x):\n    return 0\n"


def verdict_on(sandbox: Sandbox, program: str, tests: str = TESTS) -> Verdict:
    """Of the code grader's rule on a completion that is nothing but a program."""
    return judge(sandbox, "", f"```python\n{program}\n```", tests)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ended while we looked
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


def left_behind(sandbox: Sandbox) -> list[str]:
    """Processes, mounts and files that should not be there between two executions."""
    assert sandbox.pid is not None
    server, *others = descendants(sandbox.pid)
    mounts = [line.split()[1] for line in Path(f"/proc/{server}/mounts").read_text().splitlines()]
    places = [Path(place) for place in ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", os.getcwd(), Path.home())]
    files = [str(found) for place in places if os.access(place, os.R_OK) for found in place.glob(f"{TOKEN}*")]
    mine = Path("/proc/self/mounts").read_text()
    return [
        *map(str, others),
        *[m for m in mounts if m == "/box"],
        *files,
        *(["a mount"] if TOKEN in mine else []),
    ]
