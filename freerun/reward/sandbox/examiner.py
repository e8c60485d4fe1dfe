"""The child that runs the tests, and says how they ended; the program under test is in another process.

The tests see the program's functions as `Remote` objects. What they compare are plain values of this process,
by its own `==`; the verdict goes into a pipe that no other process of the sandbox has ever held.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import socket
import traceback
from typing import Any

from freerun.reward.sandbox.candidate import read_text
from freerun.reward.sandbox.link import Link, LinkLost

TESTS, VERDICT, LINK = 3, 4, 5
"""Descriptors of an examiner, after its standard ones."""


def examine() -> None:
    """Run the tests to their end, and write the verdict."""
    examination = json.loads(read_text(TESTS))
    random.seed(examination["tests"])  # reproducible, and unknown to the program
    # As ourselves: the tests may end the process by SystemExit or worse, and that is no pass.
    try:
        passed, reason = _passes(examination), ""
    except BaseException as error:
        passed, reason = False, _reason(error)
    os.write(VERDICT, json.dumps([passed, reason[:1000]]).encode())


def _passes(examination: dict[str, Any]) -> bool:
    link = Link(socket.socket(fileno=LINK))
    names: dict[str, Any] = {"__name__": "__main__"}
    for module in examination["modules"]:
        names[module] = importlib.import_module(module)
    exec(compile(examination["prelude"], "<prompt>", "exec"), names)
    for name in examination["names"]:
        try:
            # A name like Stack is a class: its instances, unlike a function's results, may have methods.
            names[name] = link.get(0, name, is_open=name[0].isupper())
        except AttributeError:
            raise NameError(f"the program does not define {name}") from None
    exec(compile(examination["tests"], "<tests>", "exec"), names)
    return True


def _reason(error: BaseException) -> str:
    lines = [
        f"line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<tests>"
    ]
    where = f"tests, {lines[-1]}: " if lines else ""
    if isinstance(error, LinkLost):
        return f"{where}{error}"
    return f"{where}{type(error).__name__}: {error}"
