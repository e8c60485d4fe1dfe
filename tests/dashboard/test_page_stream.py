"""The stream tells a page when to look again, and asks the store only while somebody listens."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recorded_events import make_step
from served_pages import ServedPage, served, write_run

from freerun.dashboard.stream import Watch, last_event_id
from freerun.events.events import AnyEvent
from freerun.events.follow import Follower
from freerun.events.reader import RunReader
from freerun.events.schema import Rewound
from freerun.events.store import Store


class CountingFollower(Follower):
    num_polls = 0
    num_closed = 0

    def poll(self) -> list[tuple[int, AnyEvent | Rewound]]:
        type(self).num_polls += 1
        return super().poll()

    def close(self) -> None:
        type(self).num_closed += 1
        super().close()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.01)


def test_the_store_is_polled_while_somebody_listens_and_at_no_other_time(small_run: Path) -> None:
    class Counted(CountingFollower):
        pass

    async def listen() -> None:
        with ThreadPoolExecutor(1) as thread:
            watch = Watch(small_run, thread, lambda run, after: Counted(run, after=after))
            assert not watch.is_polling
            streams = [watch.changes(None), watch.changes(None)]
            for stream in streams:
                await anext(stream)
            await until(lambda: Counted.num_polls > 2)
            assert watch.num_subscribers == 2
            await streams[0].aclose()
            assert watch.is_polling
            await streams[1].aclose()
            assert not watch.is_polling
            await until(lambda: Counted.num_closed == 1)
            await asyncio.sleep(0)
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not others, "nothing is left that could poll"

    asyncio.run(listen())


def test_a_page_whose_last_listener_has_left_stops_polling(page: ServedPage) -> None:
    stream = page.open_stream()
    stream.next()
    [watch] = page.app.watches.values()
    assert watch.is_polling
    stream.close()
    deadline = 6000
    while watch.is_polling and deadline:
        page.ask("/metrics")  # what a browser does also lets the server notice who has left
        deadline -= 1
    assert not watch.is_polling


def test_a_message_says_where_the_run_stands_and_the_next_what_happened(small_run: Path) -> None:
    with RunReader(small_run) as reader:
        newest = reader.last_event_id()
    with served(small_run.parent, small_run) as page, Store(small_run) as store:
        stream = page.open_stream()
        assert stream.answer.headers["content-type"] == "text/event-stream"
        first = json.loads(stream.next()["data"])
        assert first["kinds"] == {}
        assert first["id"] >= newest
        store(make_step(4))
        message = stream.next()
        found = json.loads(message["data"])
        assert found["kinds"].get("step_finished") == 1
        assert message["id"] == str(found["id"])
        assert found["id"] > first["id"]
        stream.close()


def test_a_browser_that_comes_back_is_told_what_it_missed(page: ServedPage) -> None:
    stream = page.open_stream({"Last-Event-ID": "2"})
    message = json.loads(stream.next()["data"])
    stream.close()
    assert message["kinds"] == {"step_finished": 3, "group_finished": 1, "eval_finished": 1, "run_finished": 1}
    stream = page.open_stream({"Last-Event-ID": str(message["id"])})
    assert json.loads(stream.next()["data"]) == {"id": message["id"], "kinds": {}, "error": ""}
    stream.close()


def test_an_id_that_is_none_is_ignored() -> None:
    given = {"7": 7, " 12 ": 12, "": None, "-1": None, "x": None, "9" * 40: None, "²": None, "1\n2": None}
    assert {text: last_event_id(text) for text in given} == given
    assert last_event_id(None) is None


def test_a_stream_that_began_before_the_store_hears_of_it(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "late"
    run.mkdir(parents=True)
    with served(run.parent, run) as page:
        stream = page.open_stream()
        assert json.loads(stream.next()["data"])["id"] == 0
        write_run(run)
        assert json.loads(stream.next()["data"])["kinds"]["run_started"] == 1
        stream.close()
