"""The report in Chromium: opened from disk, without a network, it is the page; HTML from strings is refused."""

from pathlib import Path
from typing import Any

import pytest
from served_pages import served, write_run

from freerun.dashboard.report import make_report

pytestmark = pytest.mark.slow
WAIT_MILLISECONDS = 60_000
HEADING = "main h2"
REFUSAL = "() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; } }"


def open_page(browser: Any, address: str, errors: list[str], asked: list[str]) -> Any:
    """A tab that has shown its first heading; what it complains about and asks for is noted."""
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(address)
    page.locator(HEADING).first.wait_for(timeout=WAIT_MILLISECONDS)
    return page


def headings(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(HEADING).all_inner_texts()]


def test_a_report_opened_from_disk_asks_for_nothing_and_shows_what_the_live_page_shows(
    browser: Any, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "runs" / "small")
    file = tmp_path / "small.html"
    file.write_text(make_report(run))
    errors: list[str] = []
    asked: list[str] = []
    report = open_page(browser, file.as_uri(), errors, asked)
    with served(run.parent, run) as served_page:
        live = open_page(browser, served_page.link, errors, [])
        assert "token" not in live.url
        assert headings(report) == headings(live)
        assert live.evaluate(REFUSAL) == "TypeError"
        live.close()
    assert report.evaluate(REFUSAL) == "TypeError"
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}
    assert [error for error in errors if "TrustedHTML" not in error] == [], (
        "no complaint but about the planted HTML"
    )
    report.close()
