"""A page that is really served, in a thread with an event loop of its own, and requests to it, byte by byte."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recorded_events import a_loss, a_start, an_end, an_eval, make_step, write

from freerun.dashboard.access import Access
from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.server import PageApp, serve_page
from freerun.dashboard.shelf import RunShelf
from freerun.processes.listening import listen_nearby

TOKEN = "right-token"
NUM_STEPS = 3
WAIT_SECONDS = 60.0


def write_run(directory: Path, *, has_ended: bool = True) -> Path:
    """A small run as its store has it."""
    steps = [make_step(version, learning_rate=0.5) for version in range(1, NUM_STEPS + 1)]
    ends = [an_end()] if has_ended else []
    write(directory, a_start(), an_eval(0), *steps, a_loss(), an_eval(NUM_STEPS, 0.75), *ends)
    return directory


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header that is there once."""
        [value] = [value for key, value in self.headers if key.lower() == name]
        return value


class ServedPage:
    def __init__(self, runs: Path, run: Path | None = None, hosts: tuple[str, ...] = ()) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        sock = listen_nearby("127.0.0.1", 0)
        self.port: int = sock.getsockname()[1]
        self.access = Access(TOKEN, port=self.port, hosts=hosts)
        self.app = PageApp(RunShelf(runs, run), self.access, FEEDS)
        self._thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
        self._thread.start()

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    def _serve(self, sock: socket.socket) -> None:
        self._loop.run_until_complete(serve_page(self.app, sock, self._stop.wait))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._loop.close()

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        token: str | None = TOKEN,
    ) -> Reply:
        """A request with the token as a cookie, unless there is none; other headers as given."""
        cookie = {"Cookie": f"{self.access.cookie_name}={token}"} if token is not None else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(method, path, headers=cookie | dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS)

    def open_stream(self, headers: Mapping[str, str] | None = None) -> OpenStream:
        return OpenStream(self, headers or {})


class OpenStream:
    """A browser that listens to `/stream`."""

    def __init__(self, page: ServedPage, headers: Mapping[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=WAIT_SECONDS)
        cookie = {"Cookie": f"{page.access.cookie_name}={TOKEN}"}
        self._connection.request("GET", "/stream", headers=cookie | dict(headers))
        self.answer = self._connection.getresponse()

    def next(self) -> dict[str, str]:
        """The fields of the next message."""
        fields: dict[str, str] = {}
        while (line := self.answer.readline().decode().rstrip("\n")) or not fields:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
        return fields

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def served(runs: Path, run: Path | None = None, hosts: tuple[str, ...] = ()) -> Iterator[ServedPage]:
    page = ServedPage(runs, run, hosts)
    try:
        yield page
    finally:
        page.close()
