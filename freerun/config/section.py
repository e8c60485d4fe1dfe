"""A section of a recipe: a frozen dataclass that checks itself when it is made.

The type of a field says what it may be set to (`values.py`), the string below it is its documentation and its
`--help` text. What spans several fields is checked in `check`.
"""

import ast
import inspect
from typing import Any, ClassVar, get_origin, get_type_hints

from freerun.config.values import checked
from freerun.errors import ConfigError


class Section:
    """The base of every section; `class TrainConfig(Section, name="train")` is `[train]`."""

    section_name: ClassVar[str]

    def __init_subclass__(cls, *, name: str) -> None:
        cls.section_name = name

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            value = getattr(self, name)
            if not isinstance(value, dict):  # sections within a section have checked themselves
                object.__setattr__(self, name, checked(f"{self.section_name}.{name}", value, hint))
        self.check()

    def check(self) -> None:
        """Refuse values that make no sense together."""


def field_types(section: type[Any]) -> dict[str, Any]:
    """The declared type of each field, with its limits."""
    if section not in _types:
        hints = get_type_hints(section, include_extras=True)
        _types[section] = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    return _types[section]


_types: dict[type[Any], dict[str, Any]] = {}
"""What `field_types` found: every section looks its types up when it is made."""


def field_docs(section: type[Any]) -> dict[str, str]:
    """The string literal under each field. Python throws them away, so they are read from the source."""
    definition = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = inspect.cleandoc(doc)
    return docs


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(f"config: {message}")
