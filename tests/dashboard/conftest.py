"""Pages that many tests ask, and none changes; and the browser that looks at them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages_in_browsers import CHROMIUM, PatientBrowser, watch_errors
from playwright.sync_api import sync_playwright
from recorded_events import write
from rich_runs import Texts, rich_run
from served_pages import ServedPage, served, write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """The page of a small run that has ended."""
    runs = tmp_path_factory.mktemp("runs")
    with served(runs, write_run(runs / "small"), hosts=("lab.example",)) as served_page:
        yield served_page


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "small", has_ended=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert CHROMIUM.exists(), "make browser installs Chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield PatientBrowser(opened)
        opened.close()


@pytest.fixture(scope="module")
def finished(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, ServedPage, list[str]]]:
    """A page of a finished run, beside two more seeds of it, with what it complains about."""
    runs = tmp_path_factory.mktemp("finished")
    for seed, name in enumerate(("rich", "second", "third")):
        write(runs / name, *rich_run(12, Texts(name=name, completion=f" 5{6 + seed}.")))
        (runs / name / "config.toml").write_text(f'[run]\nname = "{name}"\nseed = {seed}\n[train]\nlr = 0.1\n')
    with served(runs, runs / "rich") as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        yield page, address, watch_errors(page)
        page.close()
