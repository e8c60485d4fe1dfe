"""`freerun watch`: the live view of a run that was started elsewhere."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run
from freerun.errors import FreerunError

EPILOG = """\
On a terminal the live view, elsewhere a line for each step, as the run itself prints them; in the end its summary.
Ctrl-C leaves the view, and the run continues. A run whose process was killed is reported as crashed.

  exit code 0    the run has finished, or you left
            1    it failed, was interrupted or crashed

examples:
  freerun watch runs/first
  freerun watch first --wait
  freerun watch runs/first && freerun eval runs/first
"""
WAIT_SECONDS = 0.2


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    directory = _wait_for(args.run) if args.wait else find_run(args.run)

    from rich.console import Console

    from freerun.terminal.watching import watch

    return 0 if watch(directory, Console()) in ("finished", "running") else 1


def _wait_for(given: Path) -> Path:
    """The run's directory, as soon as something has been recorded in it."""
    from freerun.events.follow import Follower

    is_told = False
    while True:
        with suppress(FreerunError):
            directory = find_run(given)
            break
        if not is_told:
            print(f'waiting for a run "{given}"; Ctrl-C ends', flush=True)
            is_told = True
        time.sleep(WAIT_SECONDS)
    with Follower(directory) as follower:
        while not follower.poll():
            time.sleep(WAIT_SECONDS)
    return directory


def _parser() -> Parser:
    description = "Watch a run that was started elsewhere, until it ends."
    parser = Parser("freerun watch", description, EPILOG, usage="RUN [--wait]")
    parser.take("run", "RUN", EXPLANATION)
    parser.flag("--wait", "wait for a run that does not exist yet")
    return parser
