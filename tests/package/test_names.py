"""One name for each thing: the package defines no class, constant, alias or set of literals in two places.

Private names are each module's business, but one with the value of another's is the same thing in two places.
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


def private_values(module: ast.Module) -> Iterator[str]:
    """Private constants of plain values, with their values."""
    for node in module.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if name.startswith("_") and not isinstance(value, ast.Call):
                    yield f"{name} = {ast.unparse(value)}"


def literals(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.Subscript(value=ast.Name(id="Literal")):
                yield ast.unparse(node)


def test_a_backend_that_starts_servers_is_named_in_its_room_and_one_table_only() -> None:
    """Other frameworks' words for our settings stay: their users type them."""
    allowed = ("freerun/backends/vllm/", "freerun/config/other_names.py")
    named = [
        (name, line.strip())
        for name in (str(path.relative_to(ROOT)) for path in MODULES)
        if not name.startswith(allowed)
        for line in (ROOT / name).read_text().splitlines()
        if "vllm" in line.lower()
    ]
    assert named == [("freerun/config/engine.py", '"vllm": "freerun.backends.vllm.backend:VLLM",')]


def test_nothing_is_named_or_spelled_twice() -> None:
    places = defaultdict(list)
    for path, module in MODULES.items():
        for name in (*classes(module), *constants(module), *private_values(module), *literals(module)):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
