"""Which processes run what, as seen in the process table."""

import time
from pathlib import Path

import psutil


def children_running(module: str, pid: int | None = None, *, recursive: bool = False) -> list[psutil.Process]:
    """Living children of this process, or of another, with `module` in their command."""
    children = psutil.Process(pid).children(recursive=recursive)
    return [child for child in children if module in command_of(child)]


def command_of(process: psutil.Process) -> str:
    """The command line, nothing if the process has ended; waits for one that is being replaced just now.

    The kernel tells a starter that its child executes the new program before it has laid out the arguments of it.
    """
    try:
        while not (arguments := process.cmdline()):
            time.sleep(0.001)
    except psutil.NoSuchProcess:  # also raised for one that only waits to be looked at
        return ""
    return " ".join(arguments)


def is_running(pid: int) -> bool:
    """A zombie whose new parent has not looked yet does not run any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
