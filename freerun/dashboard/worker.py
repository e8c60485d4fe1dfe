"""The page process of a run: serves the page until the run ends, and dies with it.

It only reads. It gets its socket from the run, so its successor listens on the same port.
"""

import asyncio
import logging
import os
import socket
from pathlib import Path

from freerun.dashboard.access import Access
from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.server import PageApp, serve_page
from freerun.dashboard.shelf import RunShelf
from freerun.dashboard.stream import GLANCE_SECONDS
from freerun.processes.parent import Parent, run_worker
from freerun.workers.page_messages import LastLook, PageEnded, ServePage, ToPage

PAGE_NICENESS = 10
LINGER_SECONDS = 0.8
"""Time for open pages to fetch the last changes."""


def serve(parent: Parent[ToPage]) -> None:
    logging.basicConfig(level=logging.WARNING)
    begin = parent.receive_first(ServePage)
    asyncio.run(_serve(parent, begin))
    parent.send(PageEnded())


async def _serve(parent: Parent[ToPage], begin: ServePage) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def take(message: ToPage) -> None:
        if isinstance(message, LastLook):
            loop.call_soon_threadsafe(over.set)

    run = Path(begin.run_directory)
    access = Access(begin.token, port=begin.port, hosts=begin.hosts)
    app = PageApp(RunShelf(run.parent, run), access, FEEDS)
    parent.pass_on(take)

    async def until_over() -> None:
        await over.wait()
        if app.num_watching:
            await asyncio.sleep(GLANCE_SECONDS + LINGER_SECONDS)

    await serve_page(app, socket.socket(fileno=begin.listener), until_over)


def main() -> None:
    os.nice(PAGE_NICENESS)
    run_worker(ToPage, serve)


if __name__ == "__main__":
    main()
