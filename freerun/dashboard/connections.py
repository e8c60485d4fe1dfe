"""Connections with limits on their number and on a client's time, which uvicorn does not have.

    too many connections 503    head too long 431    head too late 408    reader too slow: closed

A refused request gets its status and a line of text, and its connection is closed. Limits that need a complete
head are in `server.py`.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from freerun.dashboard.access import SECURITY_HEADERS

MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 8 << 10
REQUEST_SECONDS = 10.0
"""Time limit for the head of a request to arrive, for its answer to be made, and for the client to read it."""
_TEXTS = {
    400: "this is not HTTP",
    408: f"the request took longer than {REQUEST_SECONDS:g} s",
    431: f"the request's headers have more than {MAX_REQUEST_BYTES >> 10} KiB",
    503: f"the page has {MAX_CONNECTIONS} connections already; close some tabs",
}


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection which breaks a limit."""

    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503)
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.conn.receive_data(data)
        self.handle_events()
        if self._is_answering:
            self._forget_head()
        elif self._late is None:
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """h11 knows what is wrong with the request; uvicorn drops that information."""
        buffered = len(self.conn.trailing_data[0])
        self._refuse(431 if buffered > MAX_REQUEST_BYTES else 400)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        if self.flow is not None:
            super().resume_writing()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(REQUEST_SECONDS, self._refuse, 408)

    def _forget_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: int) -> None:
        """Answer with this status, unless an answer has begun, and close the connection."""
        self._forget_head()
        if self.transport.is_closing():
            return
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not (self._is_answering and self.cycle.response_started):
            self.transport.write(_answer(status))
        self.transport.close()


def _answer(status: int) -> bytes:
    text = f"{_TEXTS[status]}\n".encode()
    headers = {
        "content-type": "text/plain; charset=utf-8",
        "content-length": str(len(text)),
        "cache-control": "no-store",
        "connection": "close",
        **SECURITY_HEADERS,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} ".encode() + STATUS_PHRASES[status] + b"\r\n" + f"{lines}\r\n".encode() + text
