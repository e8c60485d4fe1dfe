"""Reading a recipe: TOML and overrides in, one frozen `Recipe` out, and back to TOML.

    demo.toml ──► {"train.lr": 2e-5, ...} ─┐
                                           ├─► sections ─► Recipe ─► dump_toml ─► runs/<name>/config.toml
    --train.lr 1e-5 ─► {"train.lr": 1e-5} ─┘

Nothing is guessed: an unknown key or a value of the wrong type is an error that names the key, the value, where
it was written and what would be right. Keys that are not written take the defaults of their section.

`[objective]` starts from a named preset instead. A preset on the command line replaces the whole section of the
file, which was meant for another algorithm. `data.mixture` names recipes; their `[data]` sections are read here,
once, so a resolved recipe depends on no other file.
"""

import dataclasses
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from freerun.config.data import DataConfig
from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.config.other_names import nearest
from freerun.config.recipe import Recipe
from freerun.config.section import Section, field_types
from freerun.config.shipped import describe_nearest, recipe_file
from freerun.config.values import as_toml, bare_type, checked, describe_type, shown
from freerun.errors import ConfigError

COMMAND_LINE = "on the command line"
IN_OVERRIDES = "in the overrides"
PRESET_KEY = "objective.preset"
MIXTURE_KEY = "data.mixture"
DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow")
TEXT_KEYS = (
    "data.template", "data.system_prompt", "data.shot_template", "data.answer", "data.answer_after",
    "sampling.stop", "sft.template",
)  # fmt: skip
"""Text that a model reads or writes: on the command line \\n is a line break there. Patterns and settings have
their own escapes and are left alone."""


def load_recipe(
    path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = (), *, without: Collection[str] = ()
) -> Recipe:
    """The recipe in `path`, or the shipped recipe of that name, with overrides.

    Overrides are values by key, `{"train.lr": 1e-5, "buffer.max_staleness": 0}`, or as a command line has them,
    `["--train.lr", "1e-5", "--buffer.max_staleness=0"]`. Keys in `without` are ignored in the file; overrides may
    set them.
    """
    path = recipe_file(path)
    overridden = _check_values(overrides) if isinstance(overrides, Mapping) else _read_overrides(overrides)
    values = {key: value for key, value in _read_toml(path).items() if key not in without}
    return _assemble(_overridden(values, overridden), name=path.stem)


def recipe_of_toml(text: str, overrides: Sequence[str] = (), *, where: str) -> Recipe:
    """The recipe that `dump_toml` wrote, with overrides as a command line has them; `where` is for errors."""
    values = _checked_tables(_parse_toml(text, where), f"in {where}")
    return _assemble(_overridden(values, _read_overrides(overrides)), name="")


def _overridden(values: dict[str, Any], overridden: dict[str, Any]) -> dict[str, Any]:
    if PRESET_KEY in overridden:
        values = {key: value for key, value in values.items() if not key.startswith("objective.")}
    return values | overridden


def make_recipe(name: str, overrides: Sequence[str]) -> Recipe:
    """A recipe without a file: the defaults, with overrides."""
    return _assemble(_read_overrides(overrides), name=name)


def _assemble(values: dict[str, Any], *, name: str) -> Recipe:
    _check_live_data(values)
    values["run.name"] = values.get("run.name") or name
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return Recipe(**{section: _build(section, values) for section, values in sections.items()})


def _check_live_data(values: Mapping[str, Any]) -> None:
    """Refuse to evaluate a run on live traffic unless the prompts are named."""
    names_data = any(key.startswith("data.") for key in values)
    if values.get("online.feedback_seconds", 0.0) > 0 and values.get("eval.num_prompts", 1) > 0 and not names_data:
        raise ConfigError(
            "config: online.feedback_seconds trains on what clients ask, and without [data] there is nothing to "
            "evaluate on; set eval.num_prompts = 0, or name held-out prompts in [data]"
        )


def _build(section: str, values: dict[str, Any]) -> Any:
    """The section, from what was written in it."""
    if isinstance(values.get("mixture"), tuple):
        values["mixture"] = _read_parts(values["mixture"])
    if section == "objective":
        return dataclasses.replace(PRESETS[values.get("preset", ObjectiveConfig.preset)], **values)
    return stages()[section](**values)


def _read_parts(names: Sequence[str]) -> dict[str, DataConfig]:
    """The `[data]` sections of the recipes that a mixture names, by the names of their files."""
    parts: dict[str, DataConfig] = {}
    for file in map(recipe_file, names):
        if file.stem in parts:
            raise ConfigError(
                f'config: {MIXTURE_KEY} holds two recipes named "{file.stem}", and prompts are named after them; '
                "rename one"
            )
        parts[file.stem] = load_recipe(file).data
    return parts


def dump_toml(recipe: Recipe) -> str:
    """Every key of the recipe, as TOML that `load_recipe` reads back to an equal recipe."""
    tables = {section: getattr(recipe, section) for section in stages()}
    tables |= {f"{MIXTURE_KEY}.{as_toml(name)}": part for name, part in recipe.data.mixture.items()}
    return "\n\n".join(f"[{name}]\n{_dump_section(section)}" for name, section in tables.items()) + "\n"


def _dump_section(section: Section) -> str:
    values = {name: getattr(section, name) for name in field_types(type(section))}
    return "\n".join(f"{name} = {as_toml(value)}" for name, value in values.items() if not isinstance(value, dict))


@cache
def stages() -> dict[str, type[Any]]:
    """The class of each section, in the order of `Recipe`."""
    hints = get_type_hints(Recipe)
    return {section.name: hints[section.name] for section in dataclasses.fields(Recipe)}


@cache
def key_types() -> dict[str, Any]:
    """The type of each dotted key, with its limits; a mixture is written as the names of its recipes."""
    types = {
        f"{section}.{name}": hint
        for section, stage in stages().items()
        for name, hint in field_types(stage).items()
    }
    return types | {MIXTURE_KEY: tuple[str, ...]}


def _read_toml(path: Path) -> dict[str, Any]:
    """The checked values of a recipe file by dotted key."""
    return _checked_tables(_parse_file(path), f"in {path}")


def _checked_tables(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    values = {}
    for section, table in tables.items():
        if section not in stages():
            inner = next(iter(table), None) if isinstance(table, dict) else None
            raise _unknown_key(f"{section}.{inner}" if inner else section, where)
        if not isinstance(table, dict):
            raise ConfigError(
                f"config: {section} = {shown(table)} {where} must be a section; write [{section}] "
                "on a separate line and its keys below"
            )
        for name, value in table.items():
            values[f"{section}.{name}"] = _checked(f"{section}.{name}", value, where)
    return values


def _parse_file(path: Path) -> dict[str, Any]:
    if path.suffix.lower() in DATA_SUFFIXES:
        raise ConfigError(
            f'config: "{path}" is data, not a recipe; "freerun init {path}" writes a recipe for it, or give one '
            f"first: freerun train RECIPE --data.path {path}"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")  # without the byte order mark of some editors
    except FileNotFoundError as error:
        raise ConfigError(f'config: there is no recipe "{path}"; {describe_nearest(path)}') from error
    except OSError as error:
        raise ConfigError(f'config: cannot read the recipe "{path}": {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise ConfigError(f'config: the recipe "{path}" is not UTF-8 text (byte {error.start})') from error
    except ValueError as error:
        raise ConfigError(f"config: the recipe {str(path)!r} cannot be a file: {error}") from error
    return _parse_toml(text, str(path))


def _parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"config: {where}: arrays or tables are nested too deeply for a recipe") from None
    except ValueError as error:  # a number of thousands of digits is one, and no TOMLDecodeError
        at = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", str(error))
        line = at[1] if at and at[1] else max(1, len(text.splitlines()))
        reason = str(error)[: at.start()] if at else str(error)
        raise ConfigError(f"config: {where}:{line}: not valid TOML: {reason}") from error


def _check_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of overrides from a program; a `Path` is its text."""
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in overrides.items()}
    return {key: _checked(key, value, IN_OVERRIDES) for key, value in texts.items()}


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """The checked values of `--section.key value` and `--section.key=value`; the last one of a repeated key wins.

    Arrays are different: each repetition adds to them, and commas separate their elements, unless they are written
    as in TOML.
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
                raise ConfigError(f"config: --{key} {COMMAND_LINE} needs {describe_type(key_types()[key])}")
            text = rest.pop(0)
        value = _checked(key, _from_text(text, key_types()[key]), COMMAND_LINE)
        if key in TEXT_KEYS and isinstance(value, str):
            value = unescaped(value)
        elif key in TEXT_KEYS and _toml_array(text, str) is None:  # TOML has its own escapes
            value = tuple(map(unescaped, value))
        values[key] = values.get(key, ()) + value if isinstance(value, tuple) else value
    return values


def _from_text(text: str, hint: Any) -> Any:
    """The value that TOML would hold, or the text itself if it cannot be read: the check then reports it."""
    hint = bare_type(hint)
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


def _toml_array(text: str, item: Any) -> Any:
    """The elements of an array that is written as in a recipe, such as `["\\n", "###"]`; None if it is not one."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        return msgspec.convert(tomllib.loads(f"array = {text}")["array"], list[item])
    except (ValueError, RecursionError):
        return None


def unescaped(text: str) -> str:
    """A text of the command line: \\n, \\t and \\\\ are read as in TOML, other backslashes are kept."""
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], text)


def _checked(key: str, value: Any, where: str) -> Any:
    """The value as its section wants it; a mixture may be written as its parts, as in a resolved recipe."""
    if key not in key_types():
        raise _unknown_key(str(key), where)
    if key == MIXTURE_KEY and isinstance(value, dict):
        return {name: _part(f"{key}.{name}", table, where) for name, table in value.items()}
    return checked(key, value, key_types()[key], where)


def _part(key: str, table: Any, where: str) -> DataConfig:
    if not isinstance(table, dict):
        raise ConfigError(f"config: {key} = {shown(table)} {where} must be a section, [{key}]")
    types = field_types(DataConfig)
    for name in table:
        if name not in types:
            raise _unknown_key(f"{key}.{name}", where, near=f"data.{name}")
    return DataConfig(
        **{name: checked(f"{key}.{name}", value, types[name], where) for name, value in table.items()}
    )


def _unknown_key(key: str, where: str, *, near: str = "") -> ConfigError:
    if key in stages():
        return ConfigError(f'config: "{key}" {where} is a section, not a key; write "{key}.KEY"')
    found = nearest_keys(near or key)
    hint = f'did you mean "{found[0]}"?' if found else '"freerun train --help" lists all keys'
    return ConfigError(f'config: unknown key "{key}" {where}; {hint}')


def nearest_keys(key: str) -> list[str]:
    """The nearest known key or section, if any is near."""
    return nearest(key, [*key_types(), *stages()])
