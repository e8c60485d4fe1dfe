"""A real browser looks at the page of real stores, as the package serves it."""

import time
from pathlib import Path
from typing import Any

from served_pages import ServedPage

CHROMIUM = Path("/usr/bin/chromium")
PLACES = ("run", "time", "samples", "learning", "runs")
WAIT_MILLISECONDS = 120_000
IS_READY = """place => document.querySelector(`main[data-place="${place}"] h2`) !== null
    && !/reading the|searching all/.test(document.querySelector("main").textContent)"""


class PatientBrowser:
    """Its pages wait longer than half a minute: beside busy processes a picture of one takes long."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def new_page(self, **options: Any) -> Any:
        page = self._browser.new_page(**options)
        page.set_default_timeout(WAIT_MILLISECONDS)
        return page


def watch_errors(page: Any) -> list[str]:
    """What the page complains about from now on: errors, dialogs, violations of its policy."""
    errors: list[str] = []

    def note_message(message: Any) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    def note_dialog(dialog: Any) -> None:
        errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", note_message)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", note_dialog)
    return errors


def until(page: Any, condition: str, argument: object = None) -> None:
    """Wait for a condition; playwright's own way would need what the page's policy forbids."""
    deadline = time.monotonic() + WAIT_MILLISECONDS / 1000
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, f"waited too long for {condition}"
        page.wait_for_timeout(30)


def open_place(page: Any, served_page: ServedPage, place: str, query: str = "") -> None:
    """Go there and wait until it shows what it knows."""
    if not page.url.startswith(f"http://127.0.0.1:{served_page.port}/"):
        page.goto(served_page.link)
    page.evaluate("address => { location.hash = address; }", f"#/{'' if place == 'run' else place}{query}")
    until(page, IS_READY, place)
    page.wait_for_timeout(150)  # for the next frame: curves are drawn once their width is known
