"""How soon an open page shows what a real run emits: from each of 200 steps to the frame that has its number.

A listener in the run's process notes when each step was emitted, the page in Chromium when it has drawn the number
of a step or a later one; both use the clock of the machine. Browser, page and run share its cores.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import ROOT, show
from bench.runs import EUCLID, euclid_start, train_command
from freerun.config.recipe import Recipe
from freerun.events.events import AnyEvent, StepFinished
from freerun.events.page_link import read_link

FIRST_STEPS = 10
"""Not measured: the page opens."""
LAST_STEPS = 10
"""Not measured: the page ends with its run."""
EMITTED = "emitted.txt"
NOTE_DRAWN = """() => {
  const drawn = (window.drawn = []);
  let latest = 0;
  const look = () => {
    const step = Number(document.querySelector(".progress")?.textContent.match(/step (\\d+) of/)?.[1] || 0);
    if (step === latest) return;
    latest = step;
    requestAnimationFrame(() => requestAnimationFrame(() => drawn.push([step, Date.now() / 1000])));
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true, characterData: true });
}"""


def note_steps(recipe: Recipe, run: Path) -> Callable[[AnyEvent], None]:
    """A listener of the run: writes the time of each step."""
    file = (run / EMITTED).open("w", buffering=1)
    offset = float("inf")

    def note(event: AnyEvent) -> None:
        nonlocal offset
        # The thread of a listener may be late; the offset of the run's clock is the least that was ever seen.
        offset = min(offset, time.time() - event.seconds)
        if isinstance(event, StepFinished):
            file.write(f"{event.result.version} {event.seconds + offset}\n")

    return note


def delay_of_run(browser: Any, scratch: Path, num_events: int) -> float:
    """The seconds within which 99 % of the steps of a real run are on its page."""
    num_steps = FIRST_STEPS + num_events + LAST_STEPS
    overrides = ("--page.port", "0", "--run.listeners", "bench.page_delay:note_steps")
    steps_wanted = ("--train.num_steps", str(num_steps))
    command = train_command(EUCLID, scratch, "watched", *euclid_start(), *overrides, *steps_wanted)
    page = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        for _ in run.stdout:
            if page is None and (link := read_link(scratch / "watched")):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.goto(link)
                page.evaluate(NOTE_DRAWN)
    if run.returncode or page is None:
        raise SystemExit(f"{' '.join(command)} ended with status {run.returncode}")
    drawn = page.evaluate("drawn")
    page.close()
    lines = [line.split() for line in (scratch / "watched" / EMITTED).read_text().splitlines()]
    emitted = {int(version): float(at) for version, at in lines}
    steps = range(FIRST_STEPS + 1, num_steps - LAST_STEPS + 1)
    delays = [next(at for shown, at in drawn if shown >= step) - emitted[step] for step in steps]
    delay = float(np.quantile(delays, 0.99))
    show(
        f"  event to pixel: half within {np.median(delays):.2f} s, 99 % within {delay:.2f} s, slowest "
        f"{max(delays):.2f} s of {len(delays)} in {emitted[steps[-1]] - emitted[steps[0]]:.0f} s"
    )
    return delay
