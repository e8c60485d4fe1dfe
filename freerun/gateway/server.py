"""The gateway: an HTTP server in the event loop of its caller.

    gateway = Gateway(sessions, sampling=recipe_sampling)
    base_url = await gateway.start()
    ...
    await gateway.close()

It listens on loopback by default. `open` returns with a listening socket: a client that connects at once waits
in the socket's queue until the event loop runs.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator

import uvicorn

from freerun.errors import ConfigError
from freerun.gateway.address import Address, listen, parse_address
from freerun.gateway.admission import DEFAULT_LIMITS, Admission, GatewayLimits
from freerun.gateway.app import GatewayApp
from freerun.gateway.connections import PunctualProtocol
from freerun.gateway.feedback import GiveFeedback
from freerun.gateway.sampling_rule import SamplingRule
from freerun.gateway.sessions import SessionDirectory
from freerun.types import Sampling

_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, so that none is closed just when it is used again."""
_CLOSE_SECONDS = 2
"""Time for requests that are being sent when the gateway closes."""


class _Server(uvicorn.Server):
    """A server that leaves signals to its process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def check_exposure(address: Address, key: str) -> None:
    """Refuse a public address without a key, and a key that no client could send."""
    if not address.is_loopback and not key:
        raise ConfigError(
            f"gateway: {address.host}:{address.port} can be reached from other machines and needs a key; give one "
            "(freerun serve: FREERUN_KEY, or --key KEY), or listen on 127.0.0.1"
        )
    if not re.fullmatch(r"[!-~]*", key):
        raise ConfigError("gateway: the key must be of printable ASCII characters without spaces")


class Gateway:
    """Serves the sessions of a directory over HTTP."""

    def __init__(
        self,
        sessions: SessionDirectory,
        *,
        sampling: Sampling,
        address: str = "127.0.0.1:0",
        key: str = "",
        limits: GatewayLimits = DEFAULT_LIMITS,
        feedback: GiveFeedback | None = None,
        clients_choose_sampling: bool = False,
    ) -> None:
        self._address = parse_address(address)
        check_exposure(self._address, key)
        self._app = GatewayApp(
            sessions,
            admission=Admission(sessions, is_loopback=self._address.is_loopback, key=key),
            sampling=SamplingRule(sampling, clients_choose=clients_choose_sampling),
            limits=limits,
            feedback=feedback,
        )
        self._server = _Server(_config(self._app))
        self._serving: asyncio.Task[None] | None = None

    @property
    def num_calls(self) -> int:
        """Number of calls in flight."""
        return len(self._app.calls)

    def open(self) -> str:
        """Start listening; served as soon as the event loop runs. Returns the base URL for OpenAI clients."""
        if self._serving is None:
            sock = listen(self._address)
            self._address = Address(self._address.host, sock.getsockname()[1])
            self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[sock]))
        return self._address.url

    async def start(self) -> str:
        """`open`, then wait until requests are served."""
        url = self.open()
        assert self._serving is not None
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0)
        return url

    @property
    def origin(self) -> str:
        """The base URL for Anthropic clients, which add `/v1` themselves."""
        return self._address.url.removesuffix("/v1")

    async def close(self) -> None:
        """End the calls in flight, answer their clients and stop."""
        await self._app.calls.close()
        if self._serving is None:
            return
        await self.start()  # a server that is stopped before it has started would start
        self._server.should_exit = True
        done, _ = await asyncio.wait({self._serving}, timeout=_CLOSE_SECONDS)
        if not done:
            for connection in [*self._server.server_state.connections]:
                connection.transport.abort()
        await self._serving


def _config(app: GatewayApp) -> uvicorn.Config:
    """The server's configuration; requests are not logged, because a path may contain a key by mistake."""
    return uvicorn.Config(
        app.asgi,
        http=PunctualProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
