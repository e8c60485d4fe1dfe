"""The recipes that come with freerun, found by name from any directory.

    times-tables                a shipped recipe, unless there is a file of this name
    times-tables.toml           the same, for places where times-tables is also the name of a task
    recipes/times-tables.toml   a path

A wheel has the recipes inside the package; a checkout has them next to it.
"""

import difflib
from functools import cache
from pathlib import Path

from freerun.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
_NUM_NEAREST = 3


@cache
def shipped_recipes() -> dict[str, Path]:
    """The files of all shipped recipes by name."""
    inside = _PACKAGE / "recipes"
    directory = inside if inside.is_dir() else _PACKAGE.parent / "recipes"
    return {file.stem: file for file in sorted(directory.glob("*.toml"), key=lambda file: file.stem)}


def recipe_file(given: str | Path) -> Path:
    """The file that a path or the name of a shipped recipe refers to; a path that does not exist is kept."""
    shipped = shipped_recipes().get(str(given).removesuffix(".toml"))
    return shipped if shipped and not Path(given).is_file() else Path(given)


def shipped_recipe(name: str) -> Path:
    """The file of a shipped recipe, even if the current directory has one of that name."""
    found = shipped_recipes().get(name.removesuffix(".toml"))
    if found is None:
        raise ConfigError(f'config: there is no shipped recipe "{name}"; {describe_nearest(name)}')
    return found


def describe_nearest(given: str | Path) -> str:
    """The remedy for a recipe that does not exist."""
    near = difflib.get_close_matches(Path(given).stem, shipped_recipes(), n=_NUM_NEAREST)
    listing = '"freerun recipes" lists the shipped ones'
    if not near:
        return listing
    names = " or ".join(f'"{name}"' for name in near)
    return f"did you mean {names}? {listing}"


def summary_of(recipe: Path) -> str:
    """What a recipe says about itself in its first line, a comment."""
    first_line = recipe.read_text(encoding="utf-8").partition("\n")[0]
    return first_line.removeprefix("#").strip()
