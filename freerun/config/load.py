"""Reading a recipe: TOML and overrides in, one frozen `Recipe` out, and back to TOML.

    demo.toml ──► {"train.lr": 2e-5, ...} ─┐
                                           ├─► sections ─► Recipe ─► dump_toml ─► runs/<name>/config.toml
    --train.lr 1e-5 ─► {"train.lr": 1e-5} ─┘

Nothing is guessed: a key that no stage declares, or a value of another type, is an error that names the key,
the value, where it was written and what would be right. A section that is written anywhere takes its stage's
defaults; one that is not takes `Recipe`'s. What values make sense is known to the stages, not here.

Only `[objective]` starts from a named preset instead. One named on the command line replaces the whole section of
the file: what the file says was meant for another algorithm, and a resolved file says everything.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.config.recipe import Recipe
from freerun.config.shipped import describe_nearest, recipe_file
from freerun.config.suggest import nearest
from freerun.errors import ConfigError

COMMAND_LINE = "on the command line"
IN_OVERRIDES = "in the overrides"
PRESET_KEY = "objective.preset"
DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow")
TEXT_KEYS = (
    "data.template", "data.system_prompt", "data.shot_template", "data.answer", "data.answer_after",
    "sampling.stop",
)  # fmt: skip
"""What a model reads or writes. A line break is hard to type on the command line, so \\n is one there. Patterns
and settings have escapes of their own, and are left alone."""
MAX_SHOWN_CHARS = 200


def load_recipe(
    path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = (), *, without: Collection[str] = ()
) -> Recipe:
    """The recipe in `path`, or the shipped recipe of that name, with overrides.

    Overrides are values by key, `{"train.lr": 1e-5, "buffer.max_staleness": 0}`, or as a command line has them,
    `["--train.lr", "1e-5", "--buffer.max_staleness=0"]`. Keys `without` are not taken from the file; overrides
    may set them.
    """
    path = recipe_file(path)
    overridden = _check_values(overrides) if isinstance(overrides, Mapping) else _read_overrides(overrides)
    values = {key: value for key, value in _read_toml(path).items() if key not in without}
    if PRESET_KEY in overridden:
        values = {key: value for key, value in values.items() if not key.startswith("objective.")}
    return _assemble(values | overridden, name=path.stem)


def make_recipe(name: str, overrides: Sequence[str]) -> Recipe:
    """A recipe without a file: every default but what the overrides say."""
    return _assemble(_read_overrides(overrides), name=name)


def _assemble(values: dict[str, Any], *, name: str) -> Recipe:
    values["run.name"] = values.get("run.name") or name
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return Recipe(**{section: _build(section, values) for section, values in sections.items()})


def _build(section: str, values: dict[str, Any]) -> Any:
    """The stage of a section, from what was written in it."""
    if section == "objective":
        return dataclasses.replace(PRESETS[values.get("preset", ObjectiveConfig.preset)], **values)
    return stages()[section](**values)


def dump_toml(recipe: Recipe) -> str:
    """Every key of the recipe, as TOML that `load_recipe` reads back to an equal recipe."""
    blocks = []
    for section in stages():
        stage = getattr(recipe, section)
        lines = [f"{f.name} = {as_toml(getattr(stage, f.name))}" for f in dataclasses.fields(stage)]
        blocks.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(blocks) + "\n"


@cache
def stages() -> dict[str, type[Any]]:
    """The dataclass of each section, in the order of `Recipe`."""
    hints = get_type_hints(Recipe)
    return {section.name: hints[section.name] for section in dataclasses.fields(Recipe)}


@cache
def key_types() -> dict[str, Any]:
    """The declared type of each dotted key."""
    return {
        f"{section}.{name}": hint
        for section, stage in stages().items()
        for name, hint in get_type_hints(stage).items()
    }


def _read_toml(path: Path) -> dict[str, Any]:
    """The checked values of a recipe file by dotted key."""
    where = f"in {path}"
    values = {}
    for section, table in _parse_file(path).items():
        if section not in stages():
            inner = next(iter(table), None) if isinstance(table, dict) else None
            raise _unknown_key(f"{section}.{inner}" if inner else section, where)
        if not isinstance(table, dict):
            raise ConfigError(
                f"config: {section} = {_shown(table)} {where} must be a section; write [{section}] "
                "on a line of its own and its keys below"
            )
        for name, value in table.items():
            key = f"{section}.{name}"
            if key not in key_types():
                raise _unknown_key(key, where)
            values[key] = _checked(key, value, where)
    return values


def _parse_file(path: Path) -> dict[str, Any]:
    if path.suffix.lower() in DATA_SUFFIXES:
        raise ConfigError(
            f'config: "{path}" is data, not a recipe; name it in a recipe as [data] path = "{path}", or give a '
            f"recipe first: freerun train RECIPE --data.path {path}"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")  # an editor's byte order mark is no part of the text
    except FileNotFoundError as error:
        raise ConfigError(f'config: there is no recipe "{path}"; {describe_nearest(path)}') from error
    except OSError as error:
        raise ConfigError(f'config: cannot read the recipe "{path}": {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise ConfigError(f'config: the recipe "{path}" is not UTF-8 text (byte {error.start})') from error
    except ValueError as error:
        raise ConfigError(f"config: the recipe {str(path)!r} cannot be a file: {error}") from error
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"config: {path}: arrays or tables are nested too deeply for a recipe") from None
    except ValueError as error:  # a number of thousands of digits is one, and no TOMLDecodeError
        at = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", str(error))
        line = at[1] if at and at[1] else max(1, len(text.splitlines()))
        reason = str(error)[: at.start()] if at else str(error)
        raise ConfigError(f"config: {path}:{line}: not valid TOML: {reason}") from error


def _check_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of overrides that a program gives; a tuple is an array, a path object is its text."""
    values = {}
    for key, value in overrides.items():
        if key not in key_types():
            raise _unknown_key(str(key), IN_OVERRIDES)
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Path):
            value = str(value)
        values[key] = _checked(key, value, IN_OVERRIDES)
    return values


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """The checked values of `--section.key value` and `--section.key=value`; of a repeated key the last.

    Only arrays are different: each repetition adds to them, and commas separate their elements, unless they are
    written as in TOML.
    """
    values: dict[str, Any] = {}
    rest = list(overrides)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise ConfigError(
                f'config: unexpected "{argument}" {COMMAND_LINE}; overrides look like --train.lr 1e-5'
            )
        key, has_value, text = argument.removeprefix("--").partition("=")
        if key not in key_types():
            raise _unknown_key(key, COMMAND_LINE)
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"config: --{key} {COMMAND_LINE} needs {_expected(key_types()[key])}")
            text = rest.pop(0)
        value = _checked(key, _from_text(text, key_types()[key]), COMMAND_LINE)
        if key in TEXT_KEYS and isinstance(value, str):
            value = unescaped(value)
        elif key in TEXT_KEYS and _toml_array(text, str) is None:  # TOML has its own escapes
            value = tuple(map(unescaped, value))
        values[key] = values.get(key, ()) + value if isinstance(value, tuple) else value
    return values


def _from_text(text: str, hint: Any) -> Any:
    """The value TOML would hold, or the text itself when it is none: the check then names it."""
    try:
        if hint in (int, float):
            return hint(text)
    except ValueError:
        return text
    if hint is bool:
        return {"true": True, "false": False}.get(text, text)
    if get_origin(hint) is tuple:
        if (array := _toml_array(text, get_args(hint)[0])) is not None:
            return array
        return [_from_text(item, get_args(hint)[0]) for item in text.split(",")] if text else []
    return text


def _toml_array(text: str, item: Any) -> list[Any] | None:
    """The elements of an array that is written as in a recipe, such as `["\\n", "###"]`; None if it is none."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        array = tomllib.loads(f"array = {text}")["array"]
    except (ValueError, RecursionError):
        return None
    return array if isinstance(array, list) and all(_is_a(item, element) for element in array) else None


def unescaped(text: str) -> str:
    """A text of the command line: \\n, \\t and \\\\ are read as in TOML, other backslashes stay."""
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], text)


def _checked(key: str, value: Any, where: str) -> Any:
    """The value as its stage wants it; nothing is converted but an integer to a number, an array to a tuple."""
    hint = key_types()[key]
    if get_origin(hint) is Literal and value in (choices := get_args(hint)):
        return choices[choices.index(value)]
    if get_origin(hint) is tuple and isinstance(value, list):
        item = get_args(hint)[0]
        if all(_is_a(item, element) for element in value):
            return tuple(item(element) for element in value)
    elif _is_a(hint, value):
        return float(value) if hint is float else value
    excess = {int: " of at most 64 bits", str: " of UTF-8 text"}.get(hint, "") if type(value) is hint else ""
    message = f"config: {key} = {_shown(value)} {where} must be {_expected(hint)}{excess}"
    if get_origin(hint) is Literal:
        message += _did_you_mean(difflib.get_close_matches(str(value), get_args(hint), n=1))
    raise ConfigError(message)


def _is_a(hint: Any, value: Any) -> bool:
    """Whether a value is of a scalar type; an integer is a number too, a boolean is not."""
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint is str:
        return type(value) is str and _is_text(value)
    return type(value) is hint and (hint is not int or -(2**63) <= value < 2**63)


def _is_text(value: str) -> bool:
    """Whether it can be written to config.toml: bytes of the command line that are not UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    """The value for an error, which nobody reads to the end if it is long."""
    try:
        text = as_toml(value)
    except ValueError:  # Python refuses to write thousands of digits
        return (
            f"a number of {value.bit_length():,} bits" if isinstance(value, int) else "numbers that are too long"
        )
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}... ({len(text):,} characters)"


def _expected(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return {str: "an array of strings", float: "an array of numbers"}[get_args(hint)[0]]
    return {int: "an integer", float: "a finite number", bool: "true or false", str: "a string"}[hint]


def _unknown_key(key: str, where: str) -> ConfigError:
    hint = _did_you_mean(nearest_keys(key)) or '; "freerun train --help" lists all keys'
    return ConfigError(f'config: unknown key "{key}" {where}{hint}')


def _did_you_mean(nearest: Sequence[str]) -> str:
    return f'; did you mean "{nearest[0]}"?' if nearest else ""


def nearest_keys(key: str) -> list[str]:
    """The key or section that was meant, if any is near."""
    return nearest(key, [*key_types(), *stages()])


def as_toml(value: Any) -> str:
    """The value as a recipe would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(item) for item in value) + "]"
    return str(value)
