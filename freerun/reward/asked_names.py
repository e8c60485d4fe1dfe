"""Which names a test program expects from the program under test: the only ones that are taken from it.

Decided from the tests alone, never from the program: one that defines `set`, `math` or `check` for itself
must not have the tests use them.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Collection
from typing import NamedTuple

_BUILTINS = frozenset(dir(builtins))


class AskedNames(NamedTuple):
    program: list[str]
    """To be defined by the program under test."""
    modules: list[str]
    """Of the standard library, used without an import."""


def asked_names(tests: str, *, known: Collection[str]) -> AskedNames:
    """What the tests use and neither define nor find in `known`; raises `ValueError` if that is nothing.

    A test program that asks for nothing would pass anything; and one that asks only for built-in names, such as
    `assert sum(10, 15) == 6`, means a function of that name, if it calls but one.
    """
    try:
        table = symtable.symtable(tests, "<tests>", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the answer is not a Python program: {error}") from error
    free = _referenced(table, is_top=True) - _bound(table) - set(known)
    modules = sorted(name for name in free & sys.stdlib_module_names if _is_only_qualifier(name, tests))
    program = sorted(free - _BUILTINS - set(modules))
    if not program:
        called = _called(tests) & free & _BUILTINS
        if len(called) != 1:
            raise ValueError("the answer is a program that calls no function which a completion could define")
        program = list(called)
    return AskedNames(program, modules)


def _referenced(table: symtable.SymbolTable, *, is_top: bool) -> set[str]:
    """Global names that are read anywhere."""
    names = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (is_top or s.is_global())}
    return names.union(*(_referenced(child, is_top=False) for child in table.get_children()))


def _bound(table: symtable.SymbolTable) -> set[str]:
    """Names that the top level binds itself."""
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}


def _is_only_qualifier(name: str, tests: str) -> bool:
    """Whether a name occurs only as in `name.something`."""
    tree = ast.parse(tests)
    qualifiers = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return all(id(n) in qualifiers for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name)


def _called(tests: str) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}
