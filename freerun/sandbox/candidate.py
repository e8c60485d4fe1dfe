"""The child that runs the untrusted program, and then answers the examiner's calls with it.

This process need not be safe from the program, which may rewrite all of it: it can only send values to an
examiner that expects hostile ones.
"""

import contextlib
import os
import random
import socket
import sys
import types

from freerun.sandbox.link import CallLink, LinkLost

PROGRAM, LINK = 3, 4
"""File descriptors of a candidate, after the standard ones; a program that is only run has no LINK."""


def run() -> None:
    """Run the program as a script."""
    _execute(types.ModuleType("__main__"))


def answer() -> None:
    """Import the program as a module, and serve its names."""
    # Not as "__main__": the tests do not ask for what a solution does when it is run as a script.
    module = types.ModuleType("solution")
    sock = socket.socket(fileno=LINK)
    try:
        _execute(module)
        root: object = module
    except BaseException as error:  # noqa: BLE001 - the edge of a program under test: a failure is data
        root = _Failed(f"the program fails when it is loaded: {type(error).__name__}: {error}"[:500])
    with contextlib.suppress(LinkLost):
        CallLink(sock, root=root, is_program=True).serve()


class _Failed:
    """Stands for a program that could not be loaded: every name raises the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> None:
        raise ImportError(self._reason)


def _execute(module: types.ModuleType) -> None:
    source = read_text(PROGRAM)
    random.seed(source)  # not seeded by the clock: the same program always gets the same verdict
    sys.modules[module.__name__] = module
    exec(compile(source, "<program>", "exec"), module.__dict__)


def read_text(descriptor: int) -> str:
    """Read an inherited file from its start, and close it."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode()
