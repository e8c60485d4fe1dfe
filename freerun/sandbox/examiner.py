"""The child that runs the tests and reports how they ended; the program under test is in another process.

The tests see the program's functions as `Remote` objects. They compare plain values of this process with its
own `==`. The verdict goes into a pipe that no other process of the sandbox has ever held.

    "right"       the tests ran to their end
    "wrong"       they did not
    "unusable"    they, or the prompt's code, fail before the program is used: no program is to blame

The tests run in two stages: everything that can run before the program is used, then the rest.

    import numpy                          first: if this fails, no program could fix it
    def check(candidate): ...             first
    assert square(3) == 9                 rest: the first statement that names what the program defines
    numbers = [2, 1]                      rest

In the first stage the program has not been used and cannot make it fail: it must not be able to turn a wrong
answer into no grade. Imports within functions, or after the first use, are tried in advance too, except
optional ones (within `try` or `if`).
"""

import ast
import importlib
import json
import os
import random
import socket
import traceback
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any, NamedTuple

from freerun.sandbox.candidate import read_text
from freerun.sandbox.link import CallLink, LinkLost, in_place

TESTS, VERDICT, LINK = 3, 4, 5
"""File descriptors of an examiner, after the standard ones."""
FILE_NAME = "<tests>"
IN_PLACE = "__in_place__"
"""The name by which the tests find `link.in_place`."""


def examine() -> None:
    """Run the tests to their end, and write the verdict."""
    examination = json.loads(read_text(TESTS))
    random.seed(examination["tests"])  # reproducible, and unknown to the program
    outcome, reason = "unusable", ""
    # Caught here: the tests may end the process with SystemExit or worse, which is not a pass.
    try:
        names: dict[str, Any] = {"__name__": "__main__", IN_PLACE: in_place}
        rest = _prepare(examination, names)
        outcome = "wrong"  # from here on the program can influence what happens
        _ask_for(examination["names"], names)
        exec(rest, names)
        outcome = "right"
    except BaseException as error:  # noqa: BLE001 - the edge of tests and program: a failure is the verdict
        reason = _reason(error)
    os.write(VERDICT, json.dumps([outcome, reason[:1000]]).encode())


def _prepare(examination: dict[str, Any], names: dict[str, Any]) -> CodeType:
    """Run everything that does not need the program; returns the rest of the tests."""
    for module in examination["modules"]:
        names[module] = importlib.import_module(module)
    exec(compile(examination["prelude"], "<prompt>", "exec"), names)
    tests = _stages_of(examination["tests"], examination["names"])
    exec(tests.imports, {})
    exec(tests.first, names)
    return tests.rest


def _ask_for(asked: list[str], names: dict[str, Any]) -> None:
    link = CallLink(socket.socket(fileno=LINK))
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
        if frame.filename == FILE_NAME
    ]
    where = f"tests, {lines[-1]}: " if lines else ""
    if isinstance(error, LinkLost):
        return f"{where}{error}"
    return f"{where}{type(error).__name__}: {error}"


class SplitTests(NamedTuple):
    """Compiled tests, in the order in which they run."""

    imports: CodeType
    """Imports of both stages; run only to see whether they fail."""
    first: CodeType
    rest: CodeType


def _stages_of(tests: str, names: Collection[str]) -> SplitTests:
    """Split the tests before the first statement that mentions one of `names`."""
    body: list[ast.stmt] = _InPlace().visit(ast.parse(tests, FILE_NAME)).body
    cut = next((index for index, statement in enumerate(body) if _mentions(statement, names)), len(body))
    imports = [found for statement in body for found in _required_imports(statement)]
    return SplitTests(*(_compiled(part) for part in (imports, body[:cut], body[cut:])))


def _compiled(body: list[ast.stmt]) -> CodeType:
    return compile(ast.Module(body, type_ignores=[]), FILE_NAME, "exec")


def _mentions(statement: ast.stmt, names: Collection[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(statement))


def _required_imports(node: ast.AST) -> Iterator[ast.stmt]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    elif not isinstance(node, ast.Try | ast.If):
        for child in ast.iter_child_nodes(node):
            yield from _required_imports(child)


class _InPlace(ast.NodeTransformer):
    """Marks calls whose result is discarded: `f(x)` as a statement, `assert f(x) is None`.

    The mark is on the function, `__in_place__(f)(x)`: `exec` and `super` still see their caller.
    """

    def visit_Expr(self, statement: ast.Expr) -> ast.AST:
        self.generic_visit(statement)
        _mark(statement.value)
        return statement

    def visit_Assert(self, statement: ast.Assert) -> ast.AST:
        self.generic_visit(statement)
        match statement.test:
            case ast.Compare(left=call, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]):
                _mark(call)
        return statement


def _mark(call: ast.expr) -> None:
    if isinstance(call, ast.Call):
        marker = ast.Name(IN_PLACE, ast.Load())
        marked = ast.Call(marker, [call.func], [])
        call.func = ast.copy_location(marked, call.func)
        ast.copy_location(marker, call.func)
