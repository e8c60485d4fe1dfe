"""Pictures of the page for docs/page.md: five places of a run, light and dark, small enough for a repository.

    python tools/draw_page.py runs/NAME docs/figures/page

Serves the run in this process and looks at it with Chromium; needs playwright and pillow.
"""

import asyncio
import io
import sys
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from freerun.dashboard.access import Access
from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.server import PageApp, serve_page
from freerun.dashboard.shelf import RunShelf
from freerun.events.reader import RunReader
from freerun.events.schema import STORES_OF_RUNS
from freerun.processes.listening import listen_nearby

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 1280, 800
HEIGHTS = {"run": 1140}
"""Of places with more to see."""
LAST_TO_COME = {
    "samples": ".tokens [data-i]",
    "run": ".shares",
    "runs": ".uplot canvas",
    "learning": ".uplot canvas",
}
"""What a place shows only after its heading."""
SLOT_SECONDS = 30.0
"""In a longer window single slots are not drawn."""
TOKEN = "for-pictures"


def addresses(run: Path) -> dict[str, str]:
    """What each picture shows: a few steps, the most divided groups of an early one, the newest other run."""
    with RunReader(run) as reader:
        steps = reader.steps()
    early = steps[len(steps) // 4]
    begin, end = (steps[max(0, min(len(steps) - 1, len(steps) // 2 + i))].seconds for i in (-2, 2))
    end = min(end, begin + SLOT_SECONDS)
    stores = sorted(run.parent.glob(STORES_OF_RUNS), key=lambda store: store.stat().st_mtime)
    other = [store.parent.name for store in stores if store.parent != run][-1:]
    return {
        "run": "#/",
        "time": f"#/time?from={begin:.1f}&to={end:.1f}",
        "samples": f"#/samples?step={early.version}&order=spread",
        "learning": "#/learning",
        "runs": f"#/runs?compare={','.join([run.name, *other])}",
    }


def draw(run: Path, directory: Path) -> None:
    """Write PLACE-SCHEME.webp for every place."""
    directory.mkdir(parents=True, exist_ok=True)
    sock = listen_nearby("127.0.0.1", 0)
    port = sock.getsockname()[1]
    app = PageApp(RunShelf(run.parent, run), Access(TOKEN, port=port), FEEDS)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(serve_page(app, sock, stop.wait)), daemon=True
    )
    thread.start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme).new_page()
            page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
            for place, address in addresses(run).items():
                page.set_viewport_size({"width": WIDTH, "height": HEIGHTS.get(place, HEIGHT)})
                page.evaluate("address => { location.hash = address; }", address)
                page.wait_for_selector(f'main[data-place="{place}"] h2', timeout=60_000)
                page.wait_for_selector(LAST_TO_COME.get(place, "canvas"), timeout=60_000)
                page.wait_for_timeout(3000)
                picture = Image.open(io.BytesIO(page.screenshot()))
                picture.save(directory / f"{place}-{scheme}.webp", quality=80, method=6)
        browser.close()
    loop.call_soon_threadsafe(stop.set)
    thread.join()


if __name__ == "__main__":
    draw(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
