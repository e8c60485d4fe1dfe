"""What an open page costs its run: a real run with its page closed, with it open in Chromium, and besieged.

Of runs in turn: by how many points of a core the controller's process is busier, and how much longer a step
takes. The browser has the lowest priority: a person's browser runs on another machine. Besieged is a page with a
hundred followers, twenty clients that never end what they ask, and a body of 64 MiB.
"""

import contextlib
import http.client
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

from bench.controller import Cost, cost_of_run
from bench.harness import ROOT, Result
from bench.runs import EUCLID
from freerun.events.page_link import read_link

NUM_STEPS = 200
LOWEST_PRIORITY = 19
NUM_FOLLOWERS, NUM_SLOW, BODY_BYTES = 100, 20, 64 << 20

Visit = Callable[[str], AbstractContextManager[None]]
"""What is done with the link of a run's page until the run ends."""


def rows_beside_run(browser: Any, scratch: Path, repetitions: int, *, num_steps: int = NUM_STEPS) -> list[Result]:
    """The controller's CPU share and the time of a step, with the page closed, open and besieged in turn."""
    _make_way()
    visits: dict[str, Visit] = {"closed": _left_alone, "open": partial(_opened, browser), "besieged": _besieged}
    costs: dict[str, list[Cost]] = {name: [] for name in visits}
    for repetition in range(repetitions):
        for name in visits if repetition % 2 == 0 else reversed(visits):
            costs[name].append(_cost(visits[name], scratch, f"{name}-{repetition}", num_steps))
    settings = {
        "recipe": str(EUCLID.relative_to(ROOT)),
        "steps": num_steps,
        "percent": {name: [cost.percent for cost in each] for name, each in costs.items()},
    }

    def result(claim: str, unit: str, limit: float, aim: float, ours: list[float], theirs: list[float]) -> Result:
        return Result(
            claim=claim,
            peer="the run with its page closed",
            at_least=limit,
            aim=aim,
            unit=unit,
            ours=ours,
            theirs=theirs,
            lower_is_better=True,
            settings=settings,
            note="Page server (nice 10) and browser (nice 19) share the two cores with the run.",
        )

    points = [a.percent - b.percent for a, b in zip(costs["open"], costs["closed"], strict=True)]
    seconds = {name: [cost.step_seconds for cost in each] for name, each in costs.items()}
    more = "page open in Chromium against closed, Euclid: "
    return [
        result(f"{more}points of a core that the controller takes more", " points", 1.0, 0.0, points, []),
        result(f"{more}time of a step", "x", 1.05, 1.0, seconds["open"], seconds["closed"]),
        result(
            "page besieged against closed, Euclid: time of a step",
            "x",
            1.05,
            1.0,
            seconds["besieged"],
            seconds["closed"],
        ),
    ]


def _cost(visit: Visit, scratch: Path, name: str, num_steps: int) -> Cost:
    """Of a run whose page is visited as soon as there is one."""
    with contextlib.ExitStack() as stack:
        visited: list[str] = []

        def begin_visit(line: str) -> None:
            if not visited and (link := read_link(scratch / name)):
                visited.append(link)
                stack.enter_context(visit(link))

        cost = cost_of_run(EUCLID, scratch, name, num_steps=num_steps, on_line=begin_visit)
    if not visited:
        raise SystemExit(f"the run {name} had no page")
    return cost


@contextmanager
def _left_alone(link: str) -> Iterator[None]:
    yield


@contextmanager
def _opened(browser: Any, link: str) -> Iterator[None]:
    page = browser.new_page()
    page.goto(link)
    page.locator("main h2").first.wait_for()
    _make_way()
    yield
    page.close()


@contextmanager
def _besieged(link: str) -> Iterator[None]:
    address = ("127.0.0.1", urlsplit(link).port or 0)
    headers = {"Authorization": f"Bearer {parse_qs(urlsplit(link).query)['token'][0]}"}
    with contextlib.ExitStack() as stack:
        for _ in range(NUM_FOLLOWERS):
            follower = http.client.HTTPConnection(*address)
            stack.callback(follower.close)
            with contextlib.suppress(OSError):  # beyond the limit it is refused
                follower.request("GET", "/stream", headers=headers)
        for _ in range(NUM_SLOW):
            slow = stack.enter_context(socket.create_connection(address))
            with contextlib.suppress(OSError):
                slow.sendall(b"GET / HTTP/1.1\r\nHost: local")
        body = stack.enter_context(socket.create_connection(address))
        with contextlib.suppress(OSError):
            body.sendall(f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES}\r\n\r\n".encode())
            body.sendall(bytes(BODY_BYTES))
        yield


def _make_way() -> None:
    """Give the browser and what drives it the lowest priority: every thread, since each has its own."""
    for process in psutil.Process().children(recursive=True):
        if "chrom" in process.name() or process.name() == "node":
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.setpriority(os.PRIO_PROCESS, thread.id, LOWEST_PRIORITY)
