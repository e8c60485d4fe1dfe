"""One name for each thing: the package defines no class, constant, alias or set of literals in two places.

Private names and type variables are each module's own business.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "freerun").rglob("*.py"))}
EVERYWHERE = {"__all__", "ALPHABET", "EPILOG"}
"""Names that each module may have: what it exports, the alphabet of a task, the end of a verb's help."""


def classes(module: ast.Module) -> Iterator[str]:
    names = (node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    return (name for name in names if not name.startswith("_"))


def constants(module: ast.Module) -> Iterator[str]:
    """Assigned at the top of a module."""
    for node in module.body:
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
                continue
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if not name.startswith("_") and name not in EVERYWHERE:
                    yield name


def literals(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.Subscript(value=ast.Name(id="Literal")):
                yield ast.unparse(node)


def test_nothing_is_named_or_spelled_twice() -> None:
    places = defaultdict(list)
    for path, module in MODULES.items():
        for name in (*classes(module), *constants(module), *literals(module)):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
