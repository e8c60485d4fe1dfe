"""The feeds of the page: pure functions from a run to data for JSON, by name.

`GET /api/NAME?param=...` is answered with `FEEDS[NAME](source, params)`. A report contains the answers to
`REPORT_FEEDS`: for each feed the requests that the page would make, under `request_key`, which `static/data.js`
also computes.
Every feed updates the source before it answers. Texts in answers are not sanitised.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from freerun.dashboard.comparison import compare_feed, runs_feed
from freerun.dashboard.curves import steps_feed
from freerun.dashboard.held_out import held_out_feed
from freerun.dashboard.paired_runs import paired_feed
from freerun.dashboard.run_feed import run_feed
from freerun.dashboard.samples import batch_feed, group_feed, lost_feed, search_feed
from freerun.dashboard.settings import settings_feed
from freerun.dashboard.source import Source
from freerun.dashboard.timeline import time_feed, trace_feed

Feed = Callable[[Source, Mapping[str, str]], object]
NUM_REPORT_STEPS = 12
"""Number of steps whose samples a report contains, the first and the last among them."""
NUM_REPORT_GROUPS = 64
"""Number of their groups that a report contains token by token."""


def _updated(feed: Feed) -> Feed:
    def answer(source: Source, params: Mapping[str, str]) -> object:
        source.update()
        return feed(source, params)

    return answer


FEEDS: dict[str, Feed] = {
    "run": _updated(run_feed),
    "steps": _updated(steps_feed),
    "time": _updated(time_feed),
    "trace": trace_feed,
    "batch": _updated(batch_feed),
    "group": _updated(group_feed),
    "held_out": _updated(held_out_feed),
    "lost": _updated(lost_feed),
    "search": _updated(search_feed),
    "settings": _updated(settings_feed),
    "runs": _updated(runs_feed),
    "compare": _updated(compare_feed),
    "paired": _updated(paired_feed),
}


def request_key(feed: str, params: Mapping[str, str]) -> str:
    """The key of an answer in a report: `batch?step=3`."""
    pairs = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in sorted(params.items()))
    return f"{feed}?{pairs}" if pairs else feed


def _once(source: Source) -> Iterable[Mapping[str, str]]:
    return [{}]


def _report_steps(source: Source) -> list[int]:
    """Evenly spaced steps, including the first and the last; none before the first step."""
    source.update()
    if not source.has_store:
        return []
    with source.reader() as reader:
        versions = [version for [version] in reader.plain_rows("SELECT version FROM steps ORDER BY version")]
    number = min(NUM_REPORT_STEPS, len(versions))
    return [versions[i * (len(versions) - 1) // max(1, number - 1)] for i in range(number)]


def _batches(source: Source) -> Iterable[Mapping[str, str]]:
    return [{}, *({"step": str(step)} for step in _report_steps(source))]


def _groups(source: Source) -> Iterable[Mapping[str, str]]:
    """An equal number of groups per step, first those that the page opens by itself."""
    steps = _report_steps(source)
    of_step = max(1, NUM_REPORT_GROUPS // max(1, len(steps)))
    first = (
        "SELECT ordinal FROM trajectories WHERE version = :step GROUP BY ordinal ORDER BY min(rowid) LIMIT :most"
    )
    for step in steps:
        with source.reader() as reader:
            ordinals = reader.plain_rows(first, step=step, most=of_step)
        for [ordinal] in ordinals:
            yield {"step": str(step), "ordinal": str(ordinal)}


def _held_out(source: Source) -> Iterable[Mapping[str, str]]:
    if not source.has_store:
        return
    with source.reader() as reader:
        versions = [row.version for row in reader.evals()]
    yield {}
    for version in dict.fromkeys([*versions[:1], *versions[-1:]]):
        yield {"version": str(version)}


REPORT_FEEDS: dict[str, Callable[[Source], Iterable[Mapping[str, str]]]] = {
    "run": _once,
    "steps": _once,
    "time": _once,
    "batch": _batches,
    "group": _groups,
    "held_out": _held_out,
    "lost": _once,
    "settings": _once,
}
"""For each feed in a report, the parameters of the requests that it answers; other feeds need a live page."""


def report_answers(source: Source) -> dict[str, Any]:
    """All answers in a report, by `request_key`."""
    return {
        request_key(name, params): FEEDS[name](source, params)
        for name, requests in REPORT_FEEDS.items()
        for params in requests(source)
    }
