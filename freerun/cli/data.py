"""`freerun data`: fetches the public data sets that recipes use and others from the hub, or lists them."""

import difflib
from collections.abc import Sequence

from freerun.cli.arguments import Parser
from freerun.data.hub_files import fetch_rows, is_hub_name, known_set
from freerun.data.public_sets import DIRECTORY, PUBLIC_SETS, fetch, has_file
from freerun.errors import FreerunError

GET = "get"
"""The default subcommand, which may be omitted."""
EPILOG = """\
examples:
  freerun data
  freerun data get openai/gsm8k
  freerun train gsm8k --dry-run
  freerun data get SomeOne/numbers --split train
"""


def run(arguments: Sequence[str]) -> int:
    description = "Fetch data sets to files below data/, where recipes look for them."
    parser = Parser("freerun data", description, EPILOG, usage="[[get] NAME ... [--split S] [--configuration C]]")
    known = ", ".join(PUBLIC_SETS)
    parser.take("names", "NAME", f"{known}, or a name on the hub; none lists them", nargs="*", type=str)
    parser.take("--split", "S", "only this split; default: all of them", type=str, default="")
    parser.take("--configuration", "C", "of a data set of the hub that has several", type=str, default="")
    args = parser.parse_own(arguments)
    names: list[str] = args.names
    if names[:1] == [GET]:
        names = names[1:]
        if not names:
            raise FreerunError(f"freerun data get: name a data set, such as openai/gsm8k; there are {known}")
    if not names:
        print(_listing())
        return 0
    for name in names:
        _check(name)
    for name in names:
        if short := known_set(name):
            _fetch(short, args.split)
        else:
            print(name)
            for path in fetch_rows(name, split=args.split, configuration=args.configuration):
                print(f"  {path}")
    return 0


def _check(name: str) -> None:
    if known_set(name) or (is_hub_name(name) and ":" not in name):
        return
    near = difflib.get_close_matches(name, PUBLIC_SETS, n=1)
    there = f"there are {', '.join(PUBLIC_SETS)}, and OWNER/NAME is one of the hub"
    hint = f'did you mean "{near[0]}"?' if near else there
    raise FreerunError(f'no public data set "{name}"; {hint}')


def _fetch(name: str, split: str) -> None:
    directory, chosen = DIRECTORY / name, PUBLIC_SETS[name]
    files = (chosen.file_of(split),) if split else chosen.files
    print(f"{name}: {chosen.content}; from {chosen.source}, licence {chosen.licence}")
    for file in files:
        if has_file(file, directory):
            print(f"  {directory / file.name} is already there")
        else:
            print(f"  {fetch(file, directory)}")


def _listing() -> str:
    lines = []
    for name, one in PUBLIC_SETS.items():
        is_here = all((DIRECTORY / name / file.name).is_file() for file in one.files)
        where = (
            f"in {DIRECTORY / name}" if is_here else f"not here; fetch it with: freerun data get {one.hub_name}"
        )
        lines.append(f"{name:<10}{one.hub_name}: {one.content}\n{'':<10}{one.source}; {one.licence}; {where}")
    return "\n".join(lines)
