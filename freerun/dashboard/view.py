"""`freerun view`: serves the page of runs in this process until it is stopped."""

import asyncio
import http.client
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from freerun.config.page import PageConfig
from freerun.dashboard.access import Access
from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.server import PageApp, serve_page
from freerun.dashboard.shelf import RunShelf
from freerun.errors import ConfigError
from freerun.events.page_link import new_token, read_link
from freerun.processes.listening import listen_nearby, url_of

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ASK_SECONDS = 3.0


def page_of(run: Path) -> str:
    """The link to the page that the run itself serves; empty if it serves none."""
    link = read_link(run)
    return link if link and _is_served(link) else ""


def view_page(runs: Path, run: Path | None, config: PageConfig, *, on_ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP."""
    try:
        sock = listen_nearby(config.host, config.port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port} ({error}); give another --host or --port"
        ) from error
    port, token = sock.getsockname()[1], new_token()
    access = Access(token, port=port, hosts=(*config.hosts, config.host))
    app = PageApp(RunShelf(runs, run), access, FEEDS)
    app.prepare()

    async def until_stopped() -> None:
        stopped = asyncio.Event()
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        on_ready(f"{url_of(config.host, port)}?token={token}")
        await stopped.wait()

    asyncio.run(serve_page(app, sock, until_stopped))


def _is_served(link: str) -> bool:
    """Whether a server that knows the token answers at the link."""
    parts = urlsplit(link)
    token = parse_qs(parts.query).get("token", [""])[0]
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ASK_SECONDS)
    try:
        connection.request("HEAD", "/metrics", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
