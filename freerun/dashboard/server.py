"""The page's web server: routes, and the handling of a request.

    request ─► limits ─► access ─► / and /static      files of the package
                                   /page.js           the modules joined to one (`page_files.py`)
                                   /api/FEED?run=…    a feed's answer as JSON, from the store
                                   /stream?run=…      when to look again (`stream.py`)
                                   /metrics           for Prometheus (`trackers/prometheus.py`)

Feeds run one after the other in one thread, streams in another: an SQLite connection belongs to a thread, and
neither may block the event loop. A feed that takes too long is interrupted (`events/deadline.py`), and its
thread is free for the next one. Requests are not logged, because their URLs may contain the token.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from freerun.dashboard.access import SECURITY_HEADERS, Access, Denial
from freerun.dashboard.connections import MAX_REQUEST_BYTES, REQUEST_SECONDS, LimitedProtocol
from freerun.dashboard.feeds import Feed
from freerun.dashboard.page_files import joined_modules
from freerun.dashboard.shelf import NoSuchRunError, RunShelf
from freerun.dashboard.source import Source
from freerun.dashboard.static_files import SCRIPT_TYPE, static_files
from freerun.dashboard.stream import Watch, as_event, last_event_id
from freerun.errors import FreerunError
from freerun.events.deadline import TooSlowError, reading_within
from freerun.events.follow import Follower
from freerun.events.schema import StoreError
from freerun.trackers.prometheus import exposition

MAX_ANSWER_BYTES = 2_000_000
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger(__name__)


class PageApp:
    """Answers the requests of one page."""

    def __init__(self, shelf: RunShelf, access: Access, feeds: Mapping[str, Feed]) -> None:
        self.watches: dict[Path, Watch] = {}
        self._shelf = shelf
        self._access = access
        self._feeds = feeds
        self._files = static_files()
        self._feed_thread = ThreadPoolExecutor(1, thread_name_prefix="feeds")
        self._stream_thread = ThreadPoolExecutor(1, thread_name_prefix="streams")
        routes = [
            Route("/", self._index),
            Route("/page.js", self._modules),
            Route("/static/{path:path}", self._static),
            Route("/api/{feed}", self._feed),
            Route("/stream", self._stream),
            Route("/metrics", self._metrics),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _not_found})
        app.router.redirect_slashes = False
        self.asgi = Edge(app, access)

    @property
    def num_watching(self) -> int:
        """Number of open streams."""
        return sum(watch.num_subscribers for watch in self.watches.values())

    def prepare(self) -> None:
        """Start reading the run while the browser loads the page; errors are reported by the first feed."""
        self._feed_thread.submit(lambda: self._shelf.find("").update())

    def close(self) -> None:
        self._feed_thread.submit(self._shelf.close)
        for thread in (self._feed_thread, self._stream_thread):
            thread.shutdown(wait=False)

    async def _index(self, request: Request) -> Response:
        if self._access.is_exchange(request):
            headers = {"location": "/", "set-cookie": self._access.cookie}
            return Response(status_code=303, headers=headers)
        return self._file("index.html")

    async def _modules(self, request: Request) -> Response:
        return _sent(joined_modules().encode(), SCRIPT_TYPE)

    async def _static(self, request: Request) -> Response:
        return self._file(request.path_params["path"])

    def _file(self, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return _error(404, "there is no such file")
        return _sent(file.path.read_bytes(), file.content_type)

    async def _feed(self, request: Request) -> Response:
        feed = self._feeds.get(request.path_params["feed"])
        if feed is None:
            return _error(404, f"there is no such feed; there are {', '.join(sorted(self._feeds))}")
        return await self._answer(request, lambda source: _as_json(feed(source, request.query_params)))

    async def _metrics(self, request: Request) -> Response:
        def expose(source: Source) -> Response:
            text = exposition(source.state, source.now(source.status()))
            return Response(text, headers={"content-type": PROMETHEUS_TYPE})

        return await self._answer(request, expose)

    async def _answer(self, request: Request, answer: Callable[[Source], Response]) -> Response:
        """Call `answer` with the run that the request names; every error becomes a response too."""

        def work() -> Response:
            source = self._shelf.find(request.query_params.get("run", ""))
            source.update()  # without a time limit: progress in reading is kept
            with reading_within(REQUEST_SECONDS):
                return answer(source)

        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._feed_thread, work), REQUEST_SECONDS)
        except NoSuchRunError as error:
            return _error(404, str(error))
        except (TimeoutError, TooSlowError):
            return _error(503, f"the answer took longer than {REQUEST_SECONDS:g} s; ask for less")
        except StoreError as error:
            return _error(503, str(error))
        except (FreerunError, ValueError, LookupError) as error:
            return _error(400, str(error))

    async def _stream(self, request: Request) -> Response:
        try:
            run = await asyncio.get_running_loop().run_in_executor(
                self._feed_thread, self._shelf.path_of, request.query_params.get("run", "")
            )
        except NoSuchRunError as error:
            return _error(404, str(error))
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        if request.method == "HEAD":
            return Response(headers=headers)
        watch = self.watches.setdefault(run, Watch(run, self._stream_thread, _follow))
        after = last_event_id(request.headers.get("last-event-id"))
        return StreamingResponse(_events(watch, after), headers=headers)


class Edge:
    """The outermost layer: limits and access before anything is looked up, headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_security(message["headers"], closes=message["status"] in (413, 431))
            await send(message)

        request = Request(scope)
        denial = _over_limits(request) or self._access.deny(request)
        if denial is not None:
            answer: ASGIApp = _error(denial.status, denial.reason, allow=denial.status == 405)
            await answer(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:  # noqa: BLE001 - the edge of a request
            _log.error("a request for %s failed", request.url.path, exc_info=error)


class PageServer(uvicorn.Server):
    """uvicorn without its periodic tick: without requests the process sleeps."""

    def __init__(self, app: PageApp) -> None:
        super().__init__(_config(app))
        self._stopped = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signal handlers belong to the process

    async def main_loop(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self.should_exit = self.force_exit = True
        self._stopped.set()


async def serve_page(app: PageApp, sock: socket.socket, until: Callable[[], Any]) -> None:
    """Serve on the socket until the awaitable returned by `until` is done."""
    server = PageServer(app)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await until()
    finally:
        server.stop()
        for connection in [*server.server_state.connections]:
            connection.transport.abort()
        await serving
        app.close()


def _config(app: PageApp) -> uvicorn.Config:
    return uvicorn.Config(
        app.asgi,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
        timeout_graceful_shutdown=1,
    )


def _over_limits(request: Request) -> Denial | None:
    scope, headers = request.scope, request.headers
    num_bytes = sum(len(name) + len(value) + 4 for name, value in headers.raw)
    if num_bytes + len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_REQUEST_BYTES:
        return Denial(431, f"the request's headers have more than {MAX_REQUEST_BYTES >> 10} KiB")
    if headers.get("content-length", "0").strip("0 ") or "transfer-encoding" in headers:
        return Denial(413, "the page takes no bodies")
    return None


def _with_security(headers: Any, *, closes: bool) -> list[tuple[bytes, bytes]]:
    found = [(name.lower(), value) for name, value in headers]
    if not any(name == b"cache-control" for name, _ in found):
        found.append((b"cache-control", b"no-store"))
    if closes:
        found.append((b"connection", b"close"))
    return [*found, *((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items())]


def _as_json(answer: object) -> Response:
    body = msgspec.json.encode(answer)
    if len(body) > MAX_ANSWER_BYTES:
        size = f"{len(body) / 1e6:.1f} MB; the most is {MAX_ANSWER_BYTES / 1e6:g} MB"
        return _error(400, f"the answer would have {size}: ask for a smaller window, or for fewer rows")
    return Response(body, headers={"content-type": "application/json"})


def _sent(content: bytes, content_type: str) -> Response:
    return Response(content, headers={"content-type": content_type, "cache-control": "no-cache"})


def _error(status: int, reason: str, *, allow: bool = False) -> Response:
    headers = {"content-type": "application/json"} | ({"allow": "GET, HEAD"} if allow else {})
    return Response(msgspec.json.encode({"error": reason}), status, headers=headers)


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(404, "there is nothing at this address")


def _follow(run: Path, after: int) -> Follower:
    return Follower(run, after=after)


async def _events(watch: Watch, after: int | None) -> AsyncIterator[bytes]:
    changes = watch.changes(after)
    try:
        async for found in changes:
            yield as_event(found)
    finally:
        await changes.aclose()
