"""What an open page costs its run: a real run with its page open in Chromium, and one with the page closed.

Two figures of the same pairs of runs: by how many points of a core the controller's process is busier, and how
much longer a step takes. The browser has the lowest priority: a person's browser runs on another machine.
"""

from pathlib import Path
from typing import Any

import psutil

from bench.controller import Cost, cost_of_run
from bench.harness import ROOT, Result
from bench.runs import EUCLID
from freerun.events.page_link import read_link

NUM_STEPS = 200
LOWEST_PRIORITY = 19


def rows_beside_run(browser: Any, scratch: Path, repetitions: int, *, num_steps: int = NUM_STEPS) -> list[Result]:
    """The controller's CPU share and the time of a step, with the page open and closed in turn."""
    _make_way()
    closed: list[Cost] = []
    opened: list[Cost] = []
    for repetition in range(repetitions):
        for is_open in (False, True) if repetition % 2 == 0 else (True, False):
            name = f"{'open' if is_open else 'closed'}-{repetition}"
            (opened if is_open else closed).append(_cost(browser if is_open else None, scratch, name, num_steps))
    settings = {
        "recipe": str(EUCLID.relative_to(ROOT)),
        "steps": num_steps,
        "percent_open": [cost.percent for cost in opened],
        "percent_closed": [cost.percent for cost in closed],
    }
    points = [a.percent - b.percent for a, b in zip(opened, closed, strict=True)]
    more = "page open in Chromium against closed, Euclid: "
    return [
        Result(
            claim=f"{more}points of a core that the controller takes more",
            peer="the run with its page closed",
            at_least=1.0,
            aim=0.0,
            unit=" points",
            ours=points,
            theirs=[],
            lower_is_better=True,
            settings=settings,
        ),
        Result(
            claim=f"{more}time of a step",
            peer="the run with its page closed",
            at_least=1.05,
            aim=1.0,
            unit="x",
            ours=[cost.step_seconds for cost in opened],
            theirs=[cost.step_seconds for cost in closed],
            lower_is_better=True,
            settings=settings,
            note="Page server (nice 10) and browser (nice 19) share the two cores with the run.",
        ),
    ]


def _cost(browser: Any | None, scratch: Path, name: str, num_steps: int) -> Cost:
    """Of a run whose page is opened as soon as there is one, if there is a browser."""
    pages: list[Any] = []

    def open_page(line: str) -> None:
        if browser is None or pages or not (link := read_link(scratch / name)):
            return
        page = browser.new_page()
        pages.append(page)
        page.goto(link)
        page.locator("main h2").first.wait_for()
        _make_way()

    cost = cost_of_run(EUCLID, scratch, name, num_steps=num_steps, on_line=open_page)
    if browser is not None and not pages:
        raise SystemExit(f"the run {name} had no page")
    for page in pages:
        page.close()
    return cost


def _make_way() -> None:
    """Give every process of the browser the lowest priority."""
    for process in psutil.Process().children(recursive=True):
        if "chrom" in process.name():
            process.nice(LOWEST_PRIORITY)
