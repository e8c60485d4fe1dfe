"""Every chart of the page without eyes and without a mouse: it has a sentence and a table, and keys do it all."""

from typing import Any

import pytest
from pages_in_browsers import PLACES, open_place, until
from served_pages import ServedPage

pytestmark = pytest.mark.slow
QUERIES = {"runs": "?compare=rich,second,third", "time": "?from=8&to=16"}
NUM_CHARTS = {"run": 9, "time": 1, "samples": 3, "learning": 10, "runs": 4}
"""At least: bars and courses; the timeline; three pictures of a batch; curves."""
CHARTS = """() => [...new Set([...document.querySelectorAll("main canvas, main svg, main [role=img]")]
    .map(drawn => drawn.closest("[role=img]") || drawn))]
  .map(chart => ({
    sentence: chart.getAttribute("aria-label") || "",
    rows: chart.closest(".chart, .card")?.querySelectorAll(".behind tbody tr").length ?? 0,
  }))"""
MOUSE_ONLY = """(() => {
  const mouse = ["click", "dblclick", "mousedown", "mouseover", "mousemove", "pointerdown", "wheel"];
  const taking = [...document.querySelectorAll("body *")]
    .filter(each => Object.keys(getEventListeners(each)).some(kind => mouse.includes(kind)));
  const isByKey = each => each.closest("a[href], button, input, select")
    || getEventListeners(each.closest("[tabindex='0']") || document.body).keydown;
  const without = taking.filter(each => !isByKey(each)).map(each => each.outerHTML.slice(0, 99));
  return { number: taking.length, without };
})()"""
FOCUS_FIRST = """() => {
  for (const each of document.querySelectorAll("[data-reached]")) delete each.dataset.reached;
  document.querySelector("a.skip").focus();
}"""
NOTE_FOCUS = """() => {
  const isNew = document.activeElement !== document.body && !document.activeElement.dataset.reached;
  document.activeElement.dataset.reached = "yes";
  return isNew;
}"""
NOT_REACHED = """() =>
  [...document.querySelectorAll("a[href], button:not([disabled]), input, select, [tabindex='0']")]
  .filter(each => !each.dataset.reached && each.offsetParent).map(each => each.outerHTML.slice(0, 99))"""


@pytest.mark.parametrize("place", PLACES)
def test_every_chart_has_a_sentence_and_a_table(finished: tuple[Any, ServedPage, list[str]], place: str) -> None:
    page, address, errors = finished
    open_place(page, address, place, QUERIES.get(place, ""))
    until(
        page,
        "n => document.querySelectorAll('main canvas, main svg, main [role=img]').length >= n",
        NUM_CHARTS[place],
    )
    page.evaluate("document.activeElement.blur()")  # in a field t is a letter
    page.keyboard.press("t")
    page.wait_for_selector(".behind table")
    charts = page.evaluate(CHARTS)
    assert len(charts) >= NUM_CHARTS[place]
    for chart in charts:
        assert any(character.isdigit() for character in chart["sentence"]), chart
        assert chart["rows"] > 0, chart
    page.keyboard.press("t")
    until(page, "() => document.querySelectorAll('.behind table').length === 0")
    assert errors == []


@pytest.mark.parametrize("place", PLACES)
def test_whatever_takes_a_mouse_takes_keys_and_tab_goes_everywhere(
    finished: tuple[Any, ServedPage, list[str]], place: str
) -> None:
    page, address, errors = finished
    open_place(page, address, place, QUERIES.get(place, ""))
    page.evaluate("dispatchEvent(new Event('freerun-tables'))")
    page.wait_for_selector(".behind table")
    tools = page.context.new_cdp_session(page)
    asked = {"expression": MOUSE_ONLY, "includeCommandLineAPI": True, "returnByValue": True}
    found = tools.send("Runtime.evaluate", asked)["result"]["value"]
    tools.detach()
    assert found["number"] > 1
    assert found["without"] == []
    page.evaluate(FOCUS_FIRST)
    while page.evaluate(NOTE_FOCUS):
        page.keyboard.press("Tab")
    assert page.evaluate(NOT_REACHED) == []
    page.evaluate("dispatchEvent(new Event('freerun-tables'))")
    assert errors == []


def test_a_sample_is_opened_and_a_curve_is_read_by_keys(finished: tuple[Any, ServedPage, list[str]]) -> None:
    page, address, errors = finished
    open_place(page, address, "samples", "?step=3")
    page.focus(".overview canvas >> nth=0")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".overview [role=status]:has-text('sample')")
    page.keyboard.press("Enter")
    until(page, "() => /step=3&group=\\d+/.test(location.hash)")
    open_place(page, address, "samples", "?step=3")
    page.get_by_role("button", name="table of rewards and lengths").press("Enter")
    page.locator(".overview td a, .overview th a").first.press("Enter")
    until(page, "() => /group=\\d+/.test(location.hash)")
    open_place(page, address, "learning")
    page.focus(".plot >> nth=1")
    for key in ("ArrowRight", "ArrowRight", "+", "ArrowRight", "Home"):
        page.keyboard.press(key)
    until(page, "() => document.querySelectorAll('.chart .now')[1].textContent.startsWith('step 3: ')")
    assert errors == []
