"""`freerun report`: a run's page as one HTML file."""

import sys
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.errors import FreerunError
from freerun.events.schema import STORE_NAME

EPILOG = """\
The file opens from disk, without a server or a network, and shows what "freerun view RUN" shows: all curves and
times, and the samples of a dozen steps.

examples:
  freerun report runs/times-tables
  freerun report runs/times-tables --out times-tables.html
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    directory: Path = args.run.parent if args.run.name == STORE_NAME else args.run
    if not (directory / STORE_NAME).is_file():
        raise FreerunError(f'"{args.run}" is not a run: it has no {STORE_NAME}; "freerun runs" lists them')
    out: Path = args.out or Path(f"{directory.absolute().name}.html")

    from freerun.dashboard.report import make_report

    page = make_report(directory)
    try:
        out.write_text(page)
    except OSError as error:
        raise FreerunError(
            f"{out}: the report cannot be written ({error.strerror or error}); give --out FILE"
        ) from error
    print(out)
    print(f"{len(page) / 1e6:.2f} MB", file=sys.stderr)
    return 0


def _parser() -> Parser:
    parser = Parser("freerun report", "Write a run's page as one HTML file.", EPILOG, usage="RUN [--out FILE]")
    parser.take("run", "RUN", "run directory")
    parser.take("--out", "FILE", "where to write it; default: the run's name with .html, here")
    return parser
