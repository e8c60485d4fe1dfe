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
from freerun.processes.listening import listen_nearby

CHROMIUM = "/usr/bin/chromium"
SIZE = {"width": 1280, "height": 800}
TOKEN = "for-pictures"


def addresses(run: Path) -> dict[str, str]:
    """What each picture shows: a window of a few steps, and the largest weights of a step in the middle."""
    with RunReader(run) as reader:
        steps = reader.steps()
    middle = steps[len(steps) // 2]
    others = sorted(path.parent.name for path in run.parent.glob("*/store.sqlite"))[-2:]
    return {
        "run": "#/",
        "time": f"#/time?from={middle.seconds - 8:.1f}&to={middle.seconds + 4:.1f}",
        "samples": f"#/samples?step={middle.version}&order=spread",
        "learning": "#/learning",
        "runs": f"#/runs?compare={','.join(others)}",
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
            page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
            page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
            for place, address in addresses(run).items():
                page.evaluate("address => { location.hash = address; }", address)
                page.wait_for_selector(f'main[data-place="{place}"] h2', timeout=60_000)
                page.wait_for_timeout(3000)
                picture = Image.open(io.BytesIO(page.screenshot()))
                picture.save(directory / f"{place}-{scheme}.webp", quality=80, method=6)
        browser.close()
    loop.call_soon_threadsafe(stop.set)
    thread.join()


if __name__ == "__main__":
    draw(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
