"""`freerun view`: the page of a run, or of all runs in a directory, during a run or later."""

import sys
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.config.page import DEFAULT_PORT, PageConfig
from freerun.config.recipe import RunConfig
from freerun.errors import FreerunError
from freerun.events.schema import STORE_NAME, STORES_OF_RUNS

EPILOG = """\
RUN is a run directory, also of a run that is running or has crashed, or a directory of runs. A run that serves its
own page is not served twice: its link is printed.

examples:
  freerun view runs/times-tables
  freerun view
  freerun view runs --port 7000 --open
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    place = Path(args.place or RunConfig().directory)
    shown, runs = _what_to_show(place)

    from freerun.dashboard.view import page_of

    if shown is not None and (link := page_of(shown)):
        print("the run serves its page itself", file=sys.stderr)
        _tell(link, opens=args.open)
        return 0
    config = PageConfig(host=args.host, port=args.port, hosts=tuple(args.hosts.split(",")) if args.hosts else ())
    serve_until_stopped(runs, shown, config, opens=args.open)
    return 0


def serve_until_stopped(runs: Path, shown: Path | None, config: PageConfig, *, opens: bool = False) -> None:
    """Print the link, and serve the page behind it until Ctrl-C."""
    from freerun.dashboard.view import view_page

    view_page(runs, shown, config, on_ready=lambda link: _tell(link, opens=opens))
    print("stopped", file=sys.stderr)


def _tell(link: str, *, opens: bool) -> None:
    from freerun.terminal.page_lines import ssh_tunnel

    print(f"page  {link}", flush=True)
    if tunnel := ssh_tunnel(link):
        print(f"      on your own machine first: {tunnel}", flush=True)
    if opens:
        import webbrowser

        webbrowser.open(link)


def _what_to_show(place: Path) -> tuple[Path | None, Path]:
    """The run to show, if one was named, and the directory of its sibling runs."""
    if place.name == STORE_NAME or (place / STORE_NAME).is_file():
        directory = (place.parent if place.name == STORE_NAME else place).absolute()
        return directory, directory.parent
    if not place.is_dir():
        raise FreerunError(
            f'"{place}" is not a directory; name a run, such as runs/times-tables, or a directory of runs'
        )
    if not any(place.glob(STORES_OF_RUNS)):
        raise FreerunError(f'"{place}" holds no runs; "freerun train" makes them in {RunConfig().directory}')
    return None, place.absolute()


def _parser() -> Parser:
    usage = "[RUN] [--port N] [--host HOST] [--hosts NAMES] [--open]"
    parser = Parser("freerun view", "Show runs in a browser.", EPILOG, usage=usage)
    take = parser.take
    take("place", "RUN", f"run, or directory of runs; default: {RunConfig().directory}", nargs="?")
    take("--port", "N", f"the next free port is taken if it is not free; default: {DEFAULT_PORT}",
         type=int, default=DEFAULT_PORT)  # fmt: skip
    take("--host", "HOST", "where to listen; default: 127.0.0.1", type=str, default=PageConfig().host)
    take("--hosts", "NAMES", "other names of this machine for browsers, with commas", type=str, default="")
    parser.flag("--open", "open the page in this machine's browser")
    return parser
