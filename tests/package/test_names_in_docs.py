"""Files and names that the documentation mentions exist, such as `engine/engine.py::Engine.step`."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from documented_commands import PAGES, ROOT, name_of

USER_FILES = re.compile(r"my_\w+\.py|random\.py|tokenizers\.py")
"""Files of a reader, in examples."""
MENTION = re.compile(r"`([\w./-]+\.py)(?:::([A-Za-z_][\w.]*))?")


@cache
def files_named(mention: str) -> tuple[Path, ...]:
    """Below the checkout or the package; a bare name may be anywhere."""
    exact = [
        path for path in (ROOT / mention, ROOT / "freerun" / mention, ROOT / "tests" / mention) if path.is_file()
    ]
    if exact or "/" in mention:
        return tuple(exact)
    return tuple(path for room in ("freerun", "tests", "bench") for path in (ROOT / room).rglob(mention))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Everything that the file defines, `Class.member` included."""
    return frozenset(_defined(ast.parse(path.read_text()).body, prefix=""))


def _defined(body: list[ast.stmt], *, prefix: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _defined(node.body, prefix=f"{prefix}{name}.")
            case ast.Assign(targets=targets):
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


def mentions(text: str) -> list[tuple[str, str]]:
    return [(file, name or "") for file, name in MENTION.findall(text) if not USER_FILES.fullmatch(file)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_names_that_a_page_mentions_exist(page: Path) -> None:
    missing = []
    for file, name in mentions(page.read_text()):
        found = files_named(file)
        if not found or (name and not any(name in names_in(path) for path in found)):
            missing.append(f"{file}::{name}" if name else file)
    assert missing == []


def test_the_layers_of_contributing_are_those_of_import_linter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [each for each in settings["contracts"] if each["type"] == "layers"]
    [listed] = re.findall(
        r"^```\n(cli .*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
    )
    rooms = [re.split(r"  +", line)[0] for line in listed.splitlines()]
    assert rooms == [layer.replace("freerun.", "") for layer in contract["layers"]]
