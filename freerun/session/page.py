"""A run's page from the run's side: its address, and the process that serves it.

    listening socket ── first connection ──► process `page` ──► browsers
          │                                       │ killed, crashed
          └──────────── next connection ◄─────────┘

The run only listens. The process starts when the page is opened, and again if it dies, with the same socket: a
page that is never opened costs nothing, and no connection is refused in between. The run never waits for the
page and never fails because of it: errors are a line in `logs/page.log`, or one line for the user.
"""

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import Callable

from freerun.config.page import PageConfig
from freerun.errors import FreerunError, WorkerError
from freerun.events.events import AnyEvent, Notice, PageOpened
from freerun.events.page_link import forget_link, new_token, write_link
from freerun.processes.listening import is_loopback, listen_nearby, url_of
from freerun.processes.local import Child
from freerun.session.run_directory import RunDirectory
from freerun.workers.page_messages import FromPage, LastLook, ServePage

PAGE_WORKER = "freerun.dashboard.worker"
NEEDS = ("starlette", "uvicorn")
RESTART_SECONDS = 1.0
"""Delay between the end of a page process and its successor, doubled each time the process ends early."""
MAX_RESTART_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A process that lived this long did not fail at its start."""
LAST_LOOK_SECONDS = 2.0
"""How long the page may take to show the end of the run to connected browsers."""


class RunPage:
    """The page of one run; open it in the run's event loop, and close it before its store is closed."""

    def __init__(self, config: PageConfig, run: RunDirectory) -> None:
        self._config = config
        self._run = run
        self._token = new_token()
        self._socket: socket.socket | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._child: Child[FromPage] | None = None

    def open(self, emit: Callable[[AnyEvent], None], seconds: float) -> None:
        """Listen, and emit the address; if the page cannot be served, emit one line instead."""
        if not self._config.serve:
            return
        if fault := self._listen():
            emit(Notice(seconds=seconds, text=f"no page: {fault}"))
            return
        assert self._socket is not None
        port = self._socket.getsockname()[1]
        url = url_of(self._config.host, port)
        try:
            write_link(self._run.path, f"{url}?token={self._token}")
        except OSError as error:
            self._socket.close()
            emit(Notice(seconds=seconds, text=f"no page: its link cannot be written ({error})"))
            return
        emit(PageOpened(seconds=seconds, url=url, is_public=not is_loopback(self._config.host)))
        self._keeping = asyncio.create_task(self._keep(port))

    async def close(self, flush: Callable[[], None]) -> None:
        """End the page process; connected browsers first see the run's end, which `flush` writes to the store."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        if self._child is not None:
            with contextlib.suppress(FreerunError):  # a store that cannot write has already ended the run
                flush()
            self._child.send(LastLook())
            await self._child.wait(LAST_LOOK_SECONDS)
            self._child.kill()
            await self._child.wait(LAST_LOOK_SECONDS)
        assert self._socket is not None
        self._socket.close()
        forget_link(self._run.path)

    def _listen(self) -> str:
        """Start listening; returns why there can be no page, empty on success."""
        missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            return f"{' and '.join(missing)} are not installed; pip install {' '.join(missing)}"
        try:
            self._socket = listen_nearby(self._config.host, self._config.port)
        except (OSError, ValueError) as error:
            return f"cannot listen on {self._config.host} ({error}); set page.host, or page.serve = false"
        self._socket.setblocking(False)
        return ""

    async def _keep(self, port: int) -> None:
        """Start the process whenever a client connects and no process runs."""
        loop, pause = asyncio.get_running_loop(), RESTART_SECONDS
        assert self._socket is not None
        while True:
            await _readable(self._socket)
            began = loop.time()
            with contextlib.suppress(WorkerError, OSError):
                await self._serve_once(self._socket, port)
            is_steady = loop.time() - began > STEADY_SECONDS
            pause = RESTART_SECONDS if is_steady else min(2 * pause, MAX_RESTART_SECONDS)
            await asyncio.sleep(pause)

    async def _serve_once(self, sock: socket.socket, port: int) -> None:
        """Start the process and return when it has ended."""
        child: Child[FromPage] = await Child.start(
            "page",
            PAGE_WORKER,
            receives=FromPage,
            log_path=self._run.logs / "page.log",
            inherited_fds=(sock.fileno(),),
        )
        self._child = child
        hosts = (*self._config.hosts, self._config.host)
        child.send(
            ServePage(
                run_directory=str(self._run.path.absolute()),
                listener=sock.fileno(),
                port=port,
                hosts=hosts,
                token=self._token,
            )
        )
        with contextlib.suppress(WorkerError):
            while await child.receive() is not None:
                pass
        child.kill()
        await child.wait(LAST_LOOK_SECONDS)
        self._child = None


async def _readable(sock: socket.socket) -> None:
    """Return when a connection is waiting to be accepted."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
