"""The commands of README.md, CONTRIBUTING.md and docs/, read from the pages; for `test_documentation.py`."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from freerun.config.shipped import shipped_recipes

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Command:
    """One command of a page, without its comment."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"

    @property
    def program(self) -> str:
        return Path(self.words[0]).name

    @property
    def is_planned_only(self) -> bool:
        return "--dry-run" in self.words

    def option(self, name: str) -> str:
        """The value that follows an option; empty without it."""
        return self.words[self.words.index(name) + 1] if name in self.words else ""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks; a fence inside one, as in the value of a key, is never a line by itself."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[Command]:
    """Of its shell blocks, and of lines in the text such as `freerun train RECIPE --objective.preset gspo`."""
    recipe = "|".join(["RECIPE", "recipes/", *(rf"{name}\b" for name in shipped_recipes())])
    scripts = [*blocks(page, "sh"), *re.findall(rf"`(freerun train (?:{recipe})[^`]*)`", page.read_text())]
    lines = [line for script in scripts for line in script.replace("\\\n", " ").splitlines()]
    # The first turn of a loop stands for all.
    split = [shlex.split(line.replace("$seed", "0"), comments=True) for line in lines]
    return [Command(name_of(page), _without_assignments(words)) for words in split if words]


def _without_assignments(words: list[str]) -> tuple[str, ...]:
    while len(words) > 1 and ASSIGNMENT.match(words[0]):
        words = words[1:]
    return tuple(words)
