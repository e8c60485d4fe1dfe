"""The child that runs the tests, and says how they ended; the program under test is in another process.

The tests see the program's functions as `Remote` objects. What they compare are plain values of this process,
by its own `==`; the verdict goes into a pipe that no other process of the sandbox has ever held.

    "right"       the tests ran to their end
    "wrong"       they did not
    "unusable"    they, or the prompt's code, fail before anything is asked of the program: no program is to blame
"""

from __future__ import annotations

import importlib
import json
import os
import random
import socket
import traceback
from types import CodeType
from typing import Any

from freerun.sandbox import stages
from freerun.sandbox.candidate import read_text
from freerun.sandbox.link import Link, LinkLost, in_place

TESTS, VERDICT, LINK = 3, 4, 5
"""Descriptors of an examiner, after its standard ones."""


def examine() -> None:
    """Run the tests to their end, and write the verdict."""
    examination = json.loads(read_text(TESTS))
    random.seed(examination["tests"])  # reproducible, and unknown to the program
    outcome, reason = "unusable", ""
    # As ourselves: the tests may end the process by SystemExit or worse, and that is no pass.
    try:
        names: dict[str, Any] = {"__name__": "__main__", stages.IN_PLACE: in_place}
        rest = _prepare(examination, names)
        outcome = "wrong"  # from here on the program has a say in what happens
        _ask_for(examination["names"], names)
        exec(rest, names)
        outcome = "right"
    except BaseException as error:  # noqa: BLE001 - the edge of tests and program: a failure is the verdict
        reason = _reason(error)
    os.write(VERDICT, json.dumps([outcome, reason[:1000]]).encode())


def _prepare(examination: dict[str, Any], names: dict[str, Any]) -> CodeType:
    """Run all that needs nothing of the program; returns what is left of the tests."""
    for module in examination["modules"]:
        names[module] = importlib.import_module(module)
    exec(compile(examination["prelude"], "<prompt>", "exec"), names)
    tests = stages.stages_of(examination["tests"], examination["names"])
    exec(tests.imports, {})
    exec(tests.first, names)
    return tests.rest


def _ask_for(asked: list[str], names: dict[str, Any]) -> None:
    link = Link(socket.socket(fileno=LINK))
    for name in asked:
        try:
            # A name like Stack is a class: its instances, unlike a function's results, may have methods.
            names[name] = link.get(0, name, may_be_class=name[0].isupper())
        except AttributeError:
            raise NameError(f"the program does not define {name}") from None


def _reason(error: BaseException) -> str:
    lines = [
        f"line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == stages.FILE_NAME
    ]
    where = f"tests, {lines[-1]}: " if lines else ""
    if isinstance(error, LinkLost):
        return f"{where}{error}"
    return f"{where}{type(error).__name__}: {error}"
