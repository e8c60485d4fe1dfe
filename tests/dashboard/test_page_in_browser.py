"""The page in Chromium: five places, in every state of a run, in light and dark, at three widths, by keyboard.

Screenshots stay in pytest's temporary directory, for people to look at.
"""

import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from hostile_texts import HOSTILE_TEXTS
from pages_in_browsers import IS_READY, PLACES, open_place, until, watch_errors
from recorded_events import write
from rich_runs import Texts, make_crashed, rich_run, rich_step
from served_pages import ServedPage, served

from bench.page_run import STEPS_OF_A_MILLION, write_run
from freerun.dashboard.comparison import MAX_COMPARED
from freerun.dashboard.report import make_report
from freerun.events.events import QueueCounts, Queues
from freerun.events.reader import RunReader
from freerun.events.store import Store
from freerun.terminal.recorded import summary_as_json

pytestmark = pytest.mark.slow
AXE = Path(__file__).parents[2] / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = ((1440, 900), (1024, 768), (390, 844))
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa")
AXE_RUN = "async (tags) => (await axe.run(document, {runOnly: tags})).violations"
FITS = "() => document.documentElement.scrollWidth <= innerWidth"
STATES: dict[str, Callable[[Path], None]] = {
    "before": lambda run: write(run, *rich_run(0, is_ended=False)),
    "running": lambda run: write(run, *rich_run(12, is_ended=False)),
    "finished": lambda run: write(run, *rich_run(12)),
    "crashed": lambda run: make_crashed(run, rich_run(7, is_ended=False)),
    "one-step": lambda run: write(run, *rich_run(1)),
    "large": lambda run: write_run(run, num_steps=STEPS_OF_A_MILLION, num_tokens=16),
}


@pytest.mark.parametrize("state", STATES)
def test_every_place_shows_a_run_in_every_state(browser: Any, tmp_path: Path, state: str) -> None:
    """No error, nothing wider than the screen, and what axe-core finds against WCAG 2.2 A and AA is nothing."""
    assert AXE.exists(), "make browser installs axe-core"
    STATES[state](tmp_path / "runs" / "rich")
    violations: dict[str, tuple[str, str]] = {}
    with served(tmp_path / "runs", tmp_path / "runs" / "rich") as address:
        page = browser.new_page()
        errors = watch_errors(page)
        open_place(page, address, "run")
        page.evaluate(AXE.read_text())
        for place in PLACES:
            open_place(page, address, place)
            for (width, height), scheme in product(WIDTHS, ("light", "dark")):
                page.set_viewport_size({"width": width, "height": height})
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(150)  # for what is drawn again
                until(page, FITS)
                picture = tmp_path / f"{place}-{state}-{width}-{scheme}.png"
                page.screenshot(path=str(picture), full_page=True)
                assert page.evaluate(FITS), picture
                for violation in page.evaluate(AXE_RUN, TAGS):
                    violations.setdefault(violation["id"], (picture.name, violation["nodes"][0]["html"][:200]))
        assert errors == []
        page.close()
    shutil.rmtree(tmp_path / "runs")  # a million trajectories need not stay
    assert violations == {}


def test_the_page_is_used_by_keyboard(finished: tuple[Any, ServedPage, list[str]]) -> None:
    page, address, errors = finished
    open_place(page, address, "run")
    for key, place in enumerate(PLACES, start=1):
        page.keyboard.press(str(key))
        page.wait_for_selector(f'main[data-place="{place}"]')
    page.keyboard.press("2")
    page.wait_for_selector("canvas")
    page.focus("canvas")
    page.keyboard.press("+")
    until(page, "() => location.hash.includes('from=')")
    before = page.evaluate("location.hash")
    page.keyboard.press("ArrowLeft")
    until(page, "before => location.hash !== before", before)
    page.keyboard.press("Enter")
    page.wait_for_selector('main[data-place="samples"] .tokens')
    page.keyboard.press("t")
    page.wait_for_selector("table th")
    page.wait_for_selector(".tokens .chunk, .tokens:not(:empty)")
    assert errors == []


SHARE = r"([\d.]+) %"
SAME_NUMBERS = {
    "steps": (r"(\d+) of (\d+)", r"step (\d+) of (\d+)"),
    "reward": (r"(\S+) → (\S+)", r"\breward\s+(\S+) → (\S+)"),
    "held-out": (rf"{SHARE} → {SHARE} \[{SHARE}, {SHARE}\] \(versions \d+ → (\d+)\)",
                 rf"\bheld-out\s+{SHARE} → {SHARE} \[{SHARE}, {SHARE}\] at version (\d+)"),
    "staleness": (r"max (\d+) of \d+: bound held", r"held\s+staleness bound \d+: greatest (\d+)"),
    "generation": (r"([\d,]+) tokens", r"\bsampled\s+([\d,]+) tokens"),
    "interrupts": (r"([\d,]+) sequences in (\d+) loads?; cost: decoding paused ([\d.]+) s, ([\d,]+) tokens",
                   r"\binterrupts\s+([\d,]+) in (\d+) loads, ([\d.]+) s paused\s+recomputed\s+([\d,]+) tokens"),
    "trained": (r"([\d,]+) trajectories; groups: (\d+) failed",
                r"\btrained\s+([\d,]+) samples.*\blost groups\s+(\d+) failed"),
}  # fmt: skip
"""For each fact of the terminal's summary: what it says there, and on the page."""

ROUNDED = 0.05 + 1e-9
"""The page gives seconds below 1 with one more digit."""


def numbers_in(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text, re.DOTALL)
    assert found, (pattern, text)
    return [float(group.replace(",", "")) for group in found.groups()]


@pytest.mark.parametrize(("num_steps", "is_ended"), [(5, True), (9, False), (12, True)])
def test_numbers_on_the_page_are_those_of_the_terminals_summary(
    browser: Any, tmp_path: Path, num_steps: int, is_ended: bool
) -> None:
    run = tmp_path / "runs" / "rich"
    write(run, *rich_run(num_steps, is_ended=is_ended))
    with RunReader(run) as reader:
        summary = summary_as_json(reader)
    with served(run.parent, run) as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        open_place(page, address, "run")
        page.wait_for_selector("text=all curves")
        text = page.inner_text("body")
        shares = page.eval_on_selector_all(
            ".shares",
            "rows => rows.map(r => [...r.querySelectorAll('.legend b')].map(b => Number(b.textContent)))",
        )
        page.close()
    assert summary["facts"].keys() - {"training", "deaths"} == SAME_NUMBERS.keys()
    for name, (told, shown) in SAME_NUMBERS.items():
        expected = numbers_in(told, summary["facts"][name])
        assert numbers_in(shown, text) == pytest.approx(expected, abs=ROUNDED), name
    assert f"{len(summary['facts']['deaths'].split(', '))} died" in text
    for finding in summary["health"]:
        assert finding["text"] in text
        assert finding["advice"] in text
    assert ("nothing to complain about" in text) == (not summary["health"])
    assert len(shares) >= 3
    assert all(sum(row) == 100 for row in shares)


def test_a_window_of_time_is_saved_as_a_picture_and_as_a_trace(
    finished: tuple[Any, ServedPage, list[str]],
) -> None:
    page, address, errors = finished
    open_place(page, address, "time", "?from=8&to=16")
    saved = {}
    for word in ("SVG", "Perfetto"):
        with page.expect_download() as download:
            page.get_by_role("button", name=word).click()
        saved[word] = download.value.path().read_text()
    picture = ElementTree.fromstring(saved["SVG"])
    words = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"trainer", "rollout-0", "slots", "buffer", "gate", "v4"} <= words
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) >= 12, "completions that left their slots"
    assert any(event["name"] == "step 5" for event in json.loads(saved["Perfetto"])["traceEvents"])
    assert errors == []


def test_seeds_are_one_curve_and_changed_prompts_pairs_commands_and_reasons_are_shown(
    finished: tuple[Any, ServedPage, list[str]],
) -> None:
    page, address, errors = finished
    open_place(page, address, "runs", "?compare=rich,second,third")
    page.wait_for_selector("text=rich and 2 more seeds")
    page.wait_for_selector("text=of seeds the mean, and a band")
    page.wait_for_selector("text=1 as before")
    sides = page.locator(".sides .group")
    assert [" 56." in sides.nth(0).inner_text(), " 57." in sides.nth(1).inner_text()] == [True, True]
    page.evaluate(AXE.read_text())
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in page.evaluate(AXE_RUN, TAGS)] == []
    page.locator("section[aria-labelledby=paired] select").nth(1).select_option("third")
    page.wait_for_selector(".sides:has-text(' 58.')")
    assert "other=third" in page.evaluate("location.hash")
    open_place(page, address, "samples", "?where=held_out")
    page.wait_for_selector("text=From version 4 to 12")
    open_place(page, address, "samples", "?step=3")
    page.wait_for_selector("text=/freerun replay .*rich --group 9/")
    open_place(page, address, "samples", "?where=lost")
    page.wait_for_selector("text=3 groups for this reason")
    assert page.locator("p.trouble").count() == 1, "12 samples were lost for it"
    assert errors == []


def test_a_live_page_shows_what_has_happened_since(browser: Any, tmp_path: Path) -> None:
    """The stream says that something has happened; the page asks the feeds again."""
    run = tmp_path / "runs" / "rich"
    write(run, *rich_run(2, is_ended=False))
    with served(run.parent, run) as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        open_place(page, address, "run")
        page.wait_for_selector("text=step 2 of 12")
        with Store(run) as store:
            for event in rich_step(3, Texts()):
                store(event)
        page.wait_for_selector("text=step 3 of 12")
        assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


STARTS = """since => performance.getEntriesByType("resource").filter(each => each.name.endsWith("/api/run"))
  .map(each => each.startTime).filter(start => start > since)"""


def test_a_change_is_asked_for_once_and_curves_only_after_a_step(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "rich"
    write(run, *rich_run(2, is_ended=False))
    asked: list[str] = []
    with served(run.parent, run) as address:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url.partition("/api/")[2]))
        open_place(page, address, "run")
        with Store(run) as store:
            emit_queues(store, num_ready=31)
            page.wait_for_selector("text=31 ready")  # after the stream's first message, which concerns everything
            asked.clear()
            since = page.evaluate("performance.now()")
            for num_ready in (32, 33):
                emit_queues(store, num_ready=num_ready)
                page.wait_for_selector(f"text={num_ready} ready")
            assert set(asked) == {"run"}
            starts = page.evaluate(STARTS, since)
            assert len(starts) >= 2
            assert all(b - a > 100 for a, b in pairwise(starts)), "two parts of the page share an answer"
            for event in rich_step(3, Texts()):
                store(event)
            page.wait_for_selector("text=3 steps")
            assert "steps" in asked
        page.close()


def emit_queues(store: Store, *, num_ready: int) -> None:
    counts = QueueCounts(
        num_running=8, num_ready=num_ready, gate_capacity=4, oldest_version=1, gate_closed_seconds=0.0
    )
    store(Queues(seconds=4.1, counts=counts))
    store.flush()


AS_IT_IS = HOSTILE_TEXTS[0]
"""Has no character that is shown in another way."""
HAS_CHART = "text => [...document.querySelectorAll('.chart h3')].some((title) => title.textContent.includes(text))"
FIELDS = ("name", "prompt", "key", "answer", "completion", "metric", "part", "reason", "worker", "failure")


def test_hostile_texts_stay_texts(browser: Any, tmp_path: Path) -> None:
    """60 payloads in every field that a model, a data file, a grader or a process writes."""
    together = "\n".join(HOSTILE_TEXTS)
    run = tmp_path / "runs" / "rich"
    long = Texts(**{field: together if field not in ("metric", "part") else HOSTILE_TEXTS[0] for field in FIELDS})
    write(run, *rich_run(8, long, is_ended=False))
    for number, payload in enumerate(HOSTILE_TEXTS):
        write(tmp_path / "runs" / f"r{number}", *rich_run(1, Texts(**dict.fromkeys(FIELDS, payload))))
    with served(run.parent, run) as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        errors = watch_errors(page)
        for place in PLACES:
            open_place(page, address, place)
        for query in ("?where=lost", "?where=held_out", "?find=script", "?step=3&order=weight"):
            open_place(page, address, "samples", query)
        page.keyboard.press("t")
        assert page.evaluate("window.pwned") is None
        for number, payload in enumerate(HOSTILE_TEXTS):
            for place in ("samples", "run", "learning"):
                open_place(page, address, place, f"?run=r{number}")
            assert page.evaluate("window.pwned") is None, payload
            assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
        assert errors == []


def test_hostile_directories_and_settings_stay_texts(browser: Any, tmp_path: Path) -> None:
    """A run is found by the name of its directory; whoever made that also wrote its settings."""
    names = [re.sub("[/\0,]", "_", payload) for payload in HOSTILE_TEXTS]
    for name, payload in zip(names, HOSTILE_TEXTS, strict=True):
        write(tmp_path / name, *rich_run(1))
        (tmp_path / name / "config.toml").write_text(f"[data]\ntask = {json.dumps(payload)}\n")
    with served(tmp_path, tmp_path / names[0]) as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        errors = watch_errors(page)
        for compared in (names[first : first + MAX_COMPARED] for first in range(0, len(names), MAX_COMPARED)):
            query = urlencode({"compare": ",".join(compared), "run": compared[0]})
            open_place(page, address, "runs", f"?{query}")
            page.wait_for_selector("section[aria-labelledby=differences] td")
            assert page.locator("tr.chosen").count() == len(compared)
            assert page.locator("section[aria-labelledby=differences] tbody td").count() == len(compared)
            assert page.evaluate("window.pwned") is None, compared
            assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
        assert errors == []
        page.close()


def test_a_report_opens_from_disk_and_its_hostile_texts_stay_texts(browser: Any, tmp_path: Path) -> None:
    together = "\n".join(HOSTILE_TEXTS)
    texts = Texts(**{field: together if field not in ("metric", "part") else HOSTILE_TEXTS[0] for field in FIELDS})
    write(tmp_path / "rich", *rich_run(8, texts))
    report = tmp_path / "report.html"
    report.write_text(make_report(tmp_path / "rich"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    errors = watch_errors(page)
    page.goto(report.as_uri())
    for place in ("run", "time", "samples", "learning"):
        page.evaluate("address => { location.hash = address; }", f"#/{'' if place == 'run' else place}")
        until(page, IS_READY, place)
    page.wait_for_selector(".chart canvas")
    for query in ("?where=lost", "?where=held_out", "?step=1&order=weight"):
        page.evaluate("address => { location.hash = address; }", f"#/samples{query}")
        until(page, IS_READY, "samples")
    assert page.evaluate("window.pwned") is None
    assert errors == []


def test_each_hostile_text_stays_a_text_in_a_report(browser: Any, tmp_path: Path) -> None:
    """One by one, names of metrics and of grader parts included, which are one line each."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    errors = watch_errors(page)
    report = tmp_path / "report.html"
    for number, payload in enumerate(HOSTILE_TEXTS):
        run = tmp_path / f"r{number}"
        write(run, *rich_run(1, Texts(**dict.fromkeys(FIELDS, payload))))
        report.write_text(make_report(run))
        page.goto(report.as_uri())
        for place in ("run", "samples", "learning"):
            page.evaluate("address => { location.hash = address; }", f"#/{'' if place == 'run' else place}")
            until(page, IS_READY, place)
            if payload == AS_IT_IS and place == "learning":
                until(page, HAS_CHART, payload)
        assert page.evaluate("window.pwned") is None, payload
        assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
        assert errors == [], payload


def test_direction_marks_and_controls_are_visible(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "rich"
    write(run, *rich_run(1, Texts(completion="a\u202eb\x1bc\u200bd\ud800e")))
    with served(run.parent, run) as address:
        page = browser.new_page()
        open_place(page, address, "samples")
        page.wait_for_selector(".group .tokens:has-text('⟨202E⟩')")
        text = page.inner_text(".group .tokens >> nth=0")
        assert text.startswith("a⟨202E⟩b␛c⟨200B⟩d")
        assert "\u202e" not in page.inner_text("body")
