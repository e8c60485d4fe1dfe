"""The commands of README.md, CONTRIBUTING.md and docs/, read from the pages in their order."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from freerun.cli.main import VERBS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
ASSIGNMENT = re.compile(r"[A-Z_]+=")
SCRIPT = re.compile(
    rf"^```sh\n(?P<block>.*?)^```$|`(?P<inline>freerun (?!model \w+`)(?:{'|'.join(VERBS)}) [^-`\s|.][^`\n]*)`",
    re.MULTILINE | re.DOTALL,
)
"""A shell block, or a command in the text that names what it is about."""


@dataclass(frozen=True)
class Command:
    """One command of a page, without its comment."""

    page: str
    words: tuple[str, ...]
    line: str = field(default="", compare=False)
    """As it is written, for a shell; the first turn of a loop stands for all."""
    is_inline: bool = False

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"

    @property
    def text(self) -> str:
        return shlex.join(self.words)

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
    return list(_commands_of(page))


def _commands_of(page: Path) -> Iterator[Command]:
    for script in SCRIPT.finditer(page.read_text()):
        is_inline = script["inline"] is not None
        for line in (script["block"] or script["inline"]).replace("\\\n", " ").splitlines():
            line = line.replace("$seed", "0").strip()
            if words := shlex.split(line, comments=True):
                yield Command(name_of(page), _without_assignments(words), line, is_inline)


def _without_assignments(words: list[str]) -> tuple[str, ...]:
    while len(words) > 1 and ASSIGNMENT.match(words[0]):
        words = words[1:]
    return tuple(words)
