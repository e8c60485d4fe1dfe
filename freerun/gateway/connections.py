"""Connections with a limit on a request's head (first line and headers), which uvicorn does not have.

Other limits apply to bodies (`admission.py`) and idle connections (uvicorn's keep-alive). The parser is httptools:
h11, which is written in Python, takes several times as long.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 60.0
"""Time limit from the first byte of a request, or the start of a connection, to the end of the headers."""
MAX_HEAD_BYTES = 64 << 10


class PunctualProtocol(HttpToolsProtocol):
    """HTTP/1.1 that closes a connection if the head of a request is late or too long."""

    _deadline: asyncio.TimerHandle | None = None
    _num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm()
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        self._num_head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
