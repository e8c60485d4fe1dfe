"""How soon the page of a run that was killed is gone: its process, its port, and the link that opens it.

Each time a real run is killed with SIGKILL, while a client follows its page. The slowest of all counts.
"""

import http.client
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil

from bench.harness import ROOT, Result, at_most, show
from bench.runs import EUCLID, euclid_start, train_command
from freerun.dashboard.view import page_of
from freerun.events.page_link import read_link
from freerun.session.page import PAGE_WORKER

NUM_KILLS = 20
LIMIT_SECONDS = 2.0
WAIT_SECONDS = 60.0


def row_of_deaths(scratch: Path, num_kills: int = NUM_KILLS) -> Result:
    taken = [_seconds_to_be_gone(scratch, f"killed-{number}") for number in range(num_kills)]
    show(f"  pages of {num_kills} killed runs: gone within {max(taken):.3f} s")
    return at_most(
        f"kill -9 of a run until its page is gone, slowest of {num_kills}, s",
        LIMIT_SECONDS,
        " s",
        [max(taken)],
        {"recipe": str(EUCLID.relative_to(ROOT)), "seconds": taken},
        peer="process, port and link",
    )


def _seconds_to_be_gone(scratch: Path, name: str) -> float:
    command = train_command(EUCLID, scratch, name, *euclid_start(), "--page.port", "0")
    run = scratch / name
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        _wait(lambda: bool(read_link(run)))
        link = read_link(run)
        follower = _follow(link)
        children = psutil.Process(process.pid).children(recursive=True)
        pages = [child for child in children if PAGE_WORKER in " ".join(child.cmdline())]
        if not pages:
            raise SystemExit("the page has no process")
        process.kill()
        began = time.perf_counter()
        _wait(lambda: not any(_lives(page) for page in pages) and _is_closed(link))
        seconds = time.perf_counter() - began
        follower.close()
    if page_of(run):
        raise SystemExit(f"{run} still names a page")
    return seconds


def _follow(link: str) -> http.client.HTTPConnection:
    """A client that reads the page's stream."""
    address = urlsplit(link)
    client = http.client.HTTPConnection(address.hostname or "", address.port)
    client.request("GET", "/stream", headers={"Authorization": f"Bearer {parse_qs(address.query)['token'][0]}"})
    client.getresponse().readline()
    return client


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_closed(link: str) -> bool:
    address = urlsplit(link)
    try:
        socket.create_connection((address.hostname or "", address.port or 0), timeout=1.0).close()
    except OSError:
        return True
    return False


def _wait(happened: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + WAIT_SECONDS
    while not happened():
        if time.perf_counter() > deadline:
            raise SystemExit(f"waited longer than {WAIT_SECONDS:g} s")
        time.sleep(0.005)
