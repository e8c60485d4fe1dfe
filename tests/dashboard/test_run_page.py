"""A run's page from the run's side: it starts when it is opened, dies with the run, and never troubles it."""

import asyncio
import http.client
import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from page_links import ask, connect, is_closed, port_of, until
from process_table import children_running, command_of, is_running
from recorded_events import a_start, make_step
from served_pages import write_run

from freerun.config.page import PageConfig
from freerun.dashboard.view import page_of
from freerun.errors import ConfigError
from freerun.events.events import AnyEvent, Notice, PageOpened
from freerun.events.page_link import LINK_FILE, read_link, write_link
from freerun.events.store import Store
from freerun.session.page import PAGE_WORKER, RunPage
from freerun.session.run_directory import RunDirectory

KEEPER = Path(__file__).parents[1] / "support" / "page_keeper.py"
ANY_PORT = PageConfig(port=0)
DEATH_SECONDS = 60.0
"""The kernel kills the page when the run dies (`processes/parent.py`): at once, on a machine that has time for it.
The page is nice, so a loaded one may take a while to let it die."""
IDLE_SECONDS = 4.0


def keep(
    run: Path, config: PageConfig, use: Callable[[RunPage, list[AnyEvent]], Awaitable[None]]
) -> list[AnyEvent]:
    """Open a run's page, use it, close it; returns what was emitted."""
    told: list[AnyEvent] = []

    async def live() -> None:
        page = RunPage(config, RunDirectory(run))
        page.open(told.append, 0.0)
        try:
            await use(page, told)
        finally:
            await page.close(lambda: None)

    asyncio.run(live())
    return told


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def nothing(page: RunPage, told: list[AnyEvent]) -> None:
    return None


def pages() -> list[psutil.Process]:
    return children_running(PAGE_WORKER)


@pytest.mark.slow
def test_the_process_starts_with_the_first_visitor_is_replaced_and_ends_with_the_run(small_run: Path) -> None:
    async def visit(page: RunPage, told: list[AnyEvent]) -> None:
        link = read_link(small_run)
        assert pages() == []
        assert (await in_thread(ask, link))[0] == 200
        [first] = pages()
        assert first.nice() == min(19, psutil.Process().nice() + 10)
        token = link.rpartition("=")[2]
        assert token not in command_of(first)
        first.kill()
        assert (await in_thread(ask, link))[0] == 200, "the same address and token"
        assert [process.pid for process in pages()] != [first.pid]

    [opened] = keep(small_run, ANY_PORT, visit)
    assert isinstance(opened, PageOpened)
    assert not opened.is_public
    assert pages() == []
    assert not (small_run / LINK_FILE).exists()
    assert is_closed(opened.url)


def test_a_run_that_is_never_looked_at_starts_no_process(small_run: Path) -> None:
    async def wait(page: RunPage, told: list[AnyEvent]) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        assert pages() == []

    keep(small_run, ANY_PORT, wait)


@pytest.mark.slow
def test_those_who_watch_see_the_end_before_the_page_goes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "small", has_ended=False)

    async def watch(page: RunPage, told: list[AnyEvent]) -> None:
        link = read_link(run)
        with Store(run) as store:
            connection = await in_thread(connect, link, "/stream")
            stream = await in_thread(connection.getresponse)
            await in_thread(stream.readline)  # where the run stands
            store(a_start())
            store(make_step(9))
            store.flush()
            closing = asyncio.create_task(page.close(lambda: None))
            seen = await in_thread(_read_to_end, stream)
            await closing
            connection.close()
            assert b"step_finished" in seen

    keep(run, ANY_PORT, watch)


def _read_to_end(stream: http.client.HTTPResponse) -> bytes:
    try:
        return stream.read()
    except http.client.IncompleteRead as cut:
        return cut.partial


def test_the_next_free_port_is_taken_if_the_one_is_not(small_run: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [opened] = keep(small_run, PageConfig(port=port), nothing)
    assert isinstance(opened, PageOpened)
    assert port_of(opened.url) > port


def test_a_page_that_cannot_be_served_is_one_line(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [nowhere] = keep(small_run, PageConfig(host="192.0.2.1", port=0), nothing)
    assert isinstance(nowhere, Notice)
    assert "192.0.2.1" in nowhere.text
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [missing] = keep(small_run, ANY_PORT, nothing)
    assert isinstance(missing, Notice)
    assert missing.text.endswith("pip install starlette uvicorn")
    assert keep(small_run, PageConfig(serve=False), nothing) == []


def test_an_address_that_others_can_reach_is_said_to_be_one(small_run: Path) -> None:
    [opened] = keep(small_run, PageConfig(host="0.0.0.0", port=0), nothing)
    assert isinstance(opened, PageOpened)
    assert opened.is_public


def test_the_link_is_for_its_user_only_and_no_old_file_is_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (tmp_path / LINK_FILE).symlink_to(elsewhere)
    assert read_link(tmp_path) == ""
    write_link(tmp_path, "http://127.0.0.1:1/?token=x")
    assert elsewhere.read_text() == "kept"
    assert stat.S_IMODE((tmp_path / LINK_FILE).stat().st_mode) == 0o600
    assert read_link(tmp_path) == "http://127.0.0.1:1/?token=x"
    (tmp_path / LINK_FILE).chmod(0o644)
    assert read_link(tmp_path) == "", "others can read it"


@pytest.mark.parametrize(("host", "hosts"), [("a b", ()), ("", ()), ("127.0.0.1", ("http://x",))])
def test_a_host_that_is_no_host_is_refused(host: str, hosts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="is not the name or the address of a machine"):
        PageConfig(host=host, hosts=hosts)


@pytest.mark.slow
def test_kill_9_of_a_run_leaves_no_process_no_port_and_no_link_that_opens(small_run: Path) -> None:
    last = ""
    for _ in range(20):
        run = subprocess.Popen([sys.executable, str(KEEPER), str(small_run)], env=dict(os.environ))
        until(partial(_has_new_link, small_run, last), "a link that replaces the dead one")
        last = read_link(small_run)
        assert ask(last)[0] == 200
        children = psutil.Process(run.pid).children(recursive=True)
        assert any(PAGE_WORKER in command_of(child) for child in children)
        run.send_signal(signal.SIGKILL)
        run.wait()
        for child in children:
            until(partial(_has_ended, child), "the page to end", DEATH_SECONDS)
        until(partial(is_closed, last), "the port to be closed", DEATH_SECONDS)
        assert page_of(small_run) == "", "the file that is left behind names a page that is gone"


def _has_ended(process: psutil.Process) -> bool:
    return not is_running(process.pid)


def _has_new_link(run: Path, last: str) -> bool:
    return read_link(run) not in ("", last)


@pytest.mark.slow
def test_a_page_that_is_not_looked_at_any_more_does_nothing(small_run: Path) -> None:
    async def leave_alone(page: RunPage, told: list[AnyEvent]) -> None:
        assert (await in_thread(ask, read_link(small_run)))[0] == 200
        [process] = pages()
        assert cpu_seconds(process.pid) > 0
        # What the visit costs is over at some time; a page that looked at the store by itself would never be idle.
        for _ in range(15):
            before = cpu_seconds(process.pid)
            await asyncio.sleep(IDLE_SECONDS)
            if cpu_seconds(process.pid) - before < IDLE_SECONDS * 0.0005:
                return
        pytest.fail("the page is never idle")

    keep(small_run, ANY_PORT, leave_alone)


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used; the kernel counts in /proc/PID/stat are too coarse for this."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
