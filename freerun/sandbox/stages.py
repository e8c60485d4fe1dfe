"""The tests in two stages: what can run before anything is asked of the program, and the rest.

    import numpy                          first: if this fails, no program could mend it
    def check(candidate): ...             first
    assert square(3) == 9                 rest: the first statement that names what the program defines
    numbers = [2, 1]                      rest

During the first stage the program has not been asked for anything, so it cannot make that stage fail: it must
not be able to turn a wrong answer into no grade. Imports within functions, or after the first question, are
tried in advance too, but for those the tests do not insist on (within `try` or `if`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from types import CodeType
from typing import NamedTuple

FILE_NAME = "<tests>"
IN_PLACE = "__in_place__"
"""The name by which the tests find `link.in_place`."""


class Stages(NamedTuple):
    """Compiled, in the order in which they run."""

    imports: CodeType
    """Those of both stages; to be run for nothing but their failure."""
    first: CodeType
    rest: CodeType


def stages_of(tests: str, names: Collection[str]) -> Stages:
    """Split the tests before the first statement that mentions one of `names`."""
    body: list[ast.stmt] = _InPlace().visit(ast.parse(tests, FILE_NAME)).body
    cut = next((index for index, statement in enumerate(body) if _mentions(statement, names)), len(body))
    imports = [found for statement in body for found in _required_imports(statement)]
    return Stages(*(_compiled(part) for part in (imports, body[:cut], body[cut:])))


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
    """Marks the calls whose result is thrown away: `f(x)` as a statement, `assert f(x) is None`.

    The mark is on the function, `__in_place__(f)(x)`, so that `exec` or `super` still see who calls them.
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
