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
    parser = Parser(
        "freerun recipes", "List the recipes that come with freerun, or print one.", EPILOG, usage="[NAME]"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="print this recipe; without a name, list them all")
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
