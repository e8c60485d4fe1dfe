"""How soon a run's page shows what there is: of a run with a million trajectories, and of one that is running.

In Chromium: from the link of `freerun view` to the first heading of the page of a store of a million
trajectories, and from there to the samples of a step in its middle. All five places of the million are looked at.

How soon the page shows what a real run emits is in `page_delay.py`, what it costs the run in `page_beside_run.py`,
how soon it is gone with a run that was killed in `page_deaths.py`, what drawing takes in `page_drawing.py`, and
what a report takes in `page_report.py`.
"""

import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import at_most, record, show
from bench.page_beside_run import rows_beside_run
from bench.page_deaths import row_of_deaths
from bench.page_delay import delay_of_run
from bench.page_drawing import rows_of_drawing
from bench.page_report import rows_of_reports
from bench.page_run import GROUP_SIZE, GROUPS_PER_STEP, STEPS_OF_A_MILLION, write_run
from bench.page_viewing import APPEARED, open_browser, viewing

NUM_EVENTS = 200
SCREENS = ((1440, 900), (1024, 768), (390, 844))


def measure(repetitions: int) -> None:
    settings: dict[str, Any] = {
        "num_trajectories": STEPS_OF_A_MILLION * GROUPS_PER_STEP * GROUP_SIZE,
        "num_events": NUM_EVENTS,
    }
    with tempfile.TemporaryDirectory(prefix="freerun-bench-page-") as place:
        large = Path(place) / "large"
        write_run(large, num_steps=STEPS_OF_A_MILLION)
        with open_browser() as browser:
            opened = [first_look(browser, large, STEPS_OF_A_MILLION // 2) for _ in range(repetitions + 1)][1:]
            look_around(browser, large)
            delays = [delay_of_run(browser, Path(place), NUM_EVENTS)]
            beside = rows_beside_run(browser, Path(place) / "beside", repetitions)
            deaths = row_of_deaths(Path(place))
            drawing = rows_of_drawing(browser, large, repetitions)
            reports = rows_of_reports(browser, Path(place) / "reports", large, repetitions)
    rows = (
        (
            "link of freerun view to the first heading, a million trajectories, s",
            1.0,
            [each.heading for each in opened],
        ),
        ("samples of a step of it, s", 0.3, [each.samples for each in opened]),
        ("a step of a real run to the pixel, 99 % of 200, s", 1.0, delays),
    )
    settings["seconds_to_link"] = [each.link for each in opened]
    results = [
        at_most(claim, limit, " s", ours, settings, peer="the page in Chromium") for claim, limit, ours in rows
    ]
    record("page", *results, *beside, deaths, *drawing, *reports)


class FirstLook(NamedTuple):
    """Seconds."""

    link: float
    """From the command to its link: mostly Python's own start."""
    heading: float
    """From the link to the first heading."""
    samples: float
    """From there to a step's samples."""


def first_look(browser: Any, run: Path, step: int) -> FirstLook:
    began = time.perf_counter()
    with viewing(run) as link:
        served = time.perf_counter()
        page = browser.new_page()
        page.goto(link, wait_until="commit")
        page.evaluate(APPEARED, ['main[data-place="run"] h2', ""])
        seen = time.perf_counter()
        page.evaluate("address => { location.hash = address; }", f"#/samples?step={step}")
        page.evaluate(APPEARED, ['main[data-place="samples"]', "7*8="])
        found = time.perf_counter()
        page.close()
    look = FirstLook(served - began, seen - served, found - seen)
    show(f"  link {look.link:.2f} s, first heading {look.heading:.2f} s, samples {look.samples:.2f} s")
    return look


def look_around(browser: Any, run: Path) -> None:
    """Every place, at three widths, in light and dark: nothing may be wider than the screen, or complain."""
    complaints: list[str] = []
    with viewing(run) as link:
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(link)
        for place in ("run", "time", "samples", "learning", "runs"):
            page.evaluate("address => { location.hash = address; }", f"#/{place}")
            page.evaluate(APPEARED, [f'main[data-place="{place}"] h2', ""])
            for (width, height), scheme in product(SCREENS, ("light", "dark")):
                page.set_viewport_size({"width": width, "height": height})
                page.emulate_media(color_scheme=scheme)
                page.evaluate(APPEARED, [f'main[data-place="{place}"] h2', ""])
                if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
                    complaints.append(f"{place} is wider than {width} pixels")
        page.close()
    if complaints:
        raise SystemExit("\n".join(complaints))
