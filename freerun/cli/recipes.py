"""`freerun recipes`: lists the recipes that come with freerun, or prints one."""

from collections.abc import Sequence

from freerun.cli.arguments import Parser
from freerun.config.shipped import shipped_recipe, shipped_recipes, summary_of

EPILOG = """\
examples:
  freerun recipes
  freerun recipes times-tables > mine.toml
  freerun train mine.toml --dry-run
  freerun train times-tables --dry-run
"""


def run(arguments: Sequence[str]) -> int:
    description = "List the recipes that come with freerun, or print one."
    parser = Parser("freerun recipes", description, EPILOG, usage="[NAME]")
    parser.take("name", "NAME", "print this recipe; without a name, list them all", nargs="?", type=str)
    name: str | None = parser.parse_own(arguments).name
    if name is None:
        print(_listing())
    else:
        print(shipped_recipe(name).read_text(encoding="utf-8"), end="")
    return 0


def _listing() -> str:
    recipes = shipped_recipes()
    width = max(map(len, recipes), default=0) + 2
    return "\n".join(f"{name:<{width}}{summary_of(file)}" for name, file in recipes.items())
