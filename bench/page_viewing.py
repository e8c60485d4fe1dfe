"""The page in Chromium, as `freerun view` serves it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from bench.harness import ROOT

APPEARED = """
([selector, text]) => new Promise(painted => {
  const isThere = () => [...document.querySelectorAll(selector)].some(each => each.textContent.includes(text));
  const nextFrame = () => requestAnimationFrame(() => requestAnimationFrame(painted));
  if (isThere()) return nextFrame();
  new MutationObserver((_, observer) => {
    if (isThere()) { observer.disconnect(); nextFrame(); }
  }).observe(document, { childList: true, subtree: true, characterData: true, attributes: true });
})
"""
"""Ends with the frame that shows a text; Playwright's own waiting looks only every half second."""


@contextmanager
def open_browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if not program:
        raise SystemExit("there is no chromium; make browser installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def viewing(run: Path) -> Iterator[str]:
    """The link to the page of a run, as `freerun view` serves it."""
    command = [sys.executable, "-m", "freerun.cli.main", "view", str(run), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()
