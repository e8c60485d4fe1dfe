"""Who may send requests, and how large: the checks before a body is parsed.

    Host  ─►  key  ─►  body, within its size and time  ─►  a dialect

A refused request is still read to its end: otherwise a client that is still sending would find its connection
closed and never see the reason. Excess data is dropped as it arrives.
"""

import asyncio
import hmac
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from freerun.gateway.address import is_name_of_loopback
from freerun.gateway.refusals import RefusedError
from freerun.gateway.sessions import SessionDirectory


@dataclass(frozen=True)
class GatewayLimits:
    """Limits on one request, and on how long its client waits without data."""

    max_body_bytes: int = 16 << 20
    body_seconds: float = 60.0
    """Time limit for a body to arrive."""
    call_seconds: float = 3600.0
    """Time limit for the policy's answer. The clock of a session usually ends the call earlier."""
    ping_seconds: float = 3.0
    """Interval of the comments sent on a waiting stream: proxies and clients close silent connections."""


DEFAULT_LIMITS = GatewayLimits()


class Admission:
    """Checks host names and keys."""

    def __init__(self, sessions: SessionDirectory, *, is_loopback: bool, key: str) -> None:
        self._sessions = sessions
        self._is_loopback = is_loopback
        self._key = key.encode()

    def admit(self, request: Request) -> str:
        """Check the request and return the client's key."""
        host = request.headers.get("host", "")
        if self._is_loopback and not is_name_of_loopback(host):
            raise RefusedError(
                "this gateway serves its own machine only; use 127.0.0.1 or localhost in the URL",
                status=403,
                code="host_not_allowed",
            )
        key = key_of(request)
        if not self._is_of_gateway(key.encode()) or not self._sessions.accepts(key):
            raise RefusedError(
                "the API key is missing or wrong; send it as Authorization: Bearer KEY or x-api-key",
                status=401,
                code="invalid_api_key",
            )
        return key

    def _is_of_gateway(self, key: bytes) -> bool:
        """Whether the key is the explicit key or a session's key made from it; True without an explicit key."""
        mine, dot = key[: len(self._key)], key[len(self._key) : len(self._key) + 1]
        return not self._key or (hmac.compare_digest(mine, self._key) and dot in (b"", b"."))


def key_of(request: Request) -> str:
    """The key, from either of the headers in which clients send it."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


async def read_body(request: Request, limits: GatewayLimits) -> bytes:
    """Read the whole body; raises if it is too large or too late."""
    num_bytes, body = 0, bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if num_bytes <= limits.max_body_bytes:
                    body += chunk
    except TimeoutError:
        raise RefusedError(
            f"the body did not arrive within {limits.body_seconds:g} s", status=408, code="timeout"
        ) from None
    if num_bytes > limits.max_body_bytes:
        raise RefusedError(
            f"the body has more than {limits.max_body_bytes} bytes; send a shorter conversation",
            status=413,
            code="request_too_large",
        )
    return bytes(body)


async def drop_body(request: Request, limits: GatewayLimits) -> None:
    """Read the body of a refused request to its end and drop it."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for _ in request.stream():
                pass
    except (TimeoutError, ClientDisconnect):
        return
