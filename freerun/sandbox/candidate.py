"""The child that runs the untrusted program, and then answers the examiner's calls with it.

Nothing here has to be safe from the program, which may rewrite all of it: this process can do no more than
send values to an examiner that expects hostile ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import types

from freerun.sandbox.link import Link, LinkLost

PROGRAM, LINK = 3, 4
"""Descriptors of a candidate, after its standard ones; a program that is only run has no link."""


def run() -> None:
    """Run the program as a script."""
    _execute(types.ModuleType("__main__"))


def answer() -> None:
    """Import the program as a module, and serve its names."""
    # Not as "__main__": what a solution does when run as a script is not asked for.
    module = types.ModuleType("solution")
    sock = socket.socket(fileno=LINK)
    try:
        _execute(module)
        root: object = module
    except BaseException as error:  # noqa: BLE001 - the edge of a program under test: a failure is data
        root = _Failed(f"the program fails when it is loaded: {type(error).__name__}: {error}"[:500])
    with contextlib.suppress(LinkLost):
        Link(sock, root=root, is_program=True).serve()


class _Failed:
    """Stands for a program that could not be loaded: every name of it is the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> None:
        raise ImportError(self._reason)


def _execute(module: types.ModuleType) -> None:
    source = read_text(PROGRAM)
    random.seed(source)  # not by the clock: the same program always meets the same fate
    sys.modules[module.__name__] = module
    exec(compile(source, "<program>", "exec"), module.__dict__)


def read_text(descriptor: int) -> str:
    """All of an inherited file, from its start; closes it."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode()
