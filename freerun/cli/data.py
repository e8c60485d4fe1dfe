"""`freerun data`: fetches the public data sets that recipes use, or lists them."""

import difflib
from collections.abc import Sequence

from freerun.cli.arguments import Parser
from freerun.data.public_sets import DIRECTORY, PUBLIC_SETS, fetch, has_file
from freerun.errors import FreerunError

EPILOG = """\
examples:
  freerun data
  freerun data gsm8k
  freerun train gsm8k --dry-run
"""


def run(arguments: Sequence[str]) -> int:
    description = "Fetch public data sets to data/NAME, where recipes look for them."
    parser = Parser("freerun data", description, EPILOG, usage="[NAME ...]")
    parser.take("names", "NAME", f"{', '.join(PUBLIC_SETS)}; none lists them", nargs="*", type=str)
    names: list[str] = parser.parse_own(arguments).names
    if not names:
        print(_listing())
        return 0
    for name in names:
        if name not in PUBLIC_SETS:
            near = difflib.get_close_matches(name, PUBLIC_SETS, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(PUBLIC_SETS)}"
            raise FreerunError(f'no public data set "{name}"; {hint}')
    for name in names:
        _fetch(name)
    return 0


def _fetch(name: str) -> None:
    directory, chosen = DIRECTORY / name, PUBLIC_SETS[name]
    print(f"{name}: {chosen.content}; from {chosen.source}, licence {chosen.licence}")
    for file in chosen.files:
        if has_file(file, directory):
            print(f"  {directory / file.name} is already there")
        else:
            print(f"  {fetch(file, directory)}")


def _listing() -> str:
    lines = []
    for name, one in PUBLIC_SETS.items():
        is_here = all((DIRECTORY / name / file.name).is_file() for file in one.files)
        where = f"in {DIRECTORY / name}" if is_here else f"not here; fetch it with: freerun data {name}"
        lines.append(f"{name:<10}{one.content}\n{'':<10}{one.source}; {one.licence}; {where}")
    return "\n".join(lines)
