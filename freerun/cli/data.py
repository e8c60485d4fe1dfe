"""`freerun data`: fetches the public data sets that recipes name, or lists them."""

from __future__ import annotations

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
    names: list[str] = _parser().parse_args(arguments).names
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
            print(f"  {directory / file.name} is there already")
        else:
            print(f"  {fetch(file, directory)}")


def _listing() -> str:
    lines = []
    for name, one in PUBLIC_SETS.items():
        is_here = all((DIRECTORY / name / file.name).is_file() for file in one.files)
        where = f"in {DIRECTORY / name}" if is_here else f"not here; fetch it with: freerun data {name}"
        lines.append(f"{name:<10}{one.content}\n{'':<10}{one.source}; {one.licence}; {where}")
    return "\n".join(lines)


def _parser() -> Parser:
    parser = Parser("freerun data", "Fetch public data sets to data/NAME, where recipes look for them.", EPILOG)
    parser.usage = "freerun data [NAME ...]"
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"{', '.join(PUBLIC_SETS)}; none lists them")
    return parser
