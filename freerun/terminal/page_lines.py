"""Describes where a run's page is: in a log without the token, at a terminal with it."""

import os
import shlex
from urllib.parse import urlsplit

from freerun.config.page import PageConfig
from freerun.events.events import PageOpened
from freerun.processes.listening import url_of


def describe_page(event: PageOpened, directory: str, link: str = "") -> str:
    """The page's location: without the link, which contains the token, for a log; with it for a terminal."""
    warning = "  warning: other machines can reach it, and nothing is encrypted" if event.is_public else ""
    if not link:
        return f"page  {event.url}{warning}  freerun view {shlex.quote(directory)} prints the link"
    tunnel = ssh_tunnel(event.url)
    return f"page  {link}{warning}" + (f"\n      on your own machine first: {tunnel}" if tunnel else "")


def page_later(directory: str) -> str:
    """The command that serves the page of an ended run, and its location."""
    config = PageConfig()
    return f"freerun view {shlex.quote(directory)}  (its page, at {url_of(config.host, config.port)})"


def ssh_tunnel(url: str) -> str:
    """The command that brings a page of this machine to the one that a terminal is on; empty if that is here."""
    try:
        _, _, address, port = os.environ["SSH_CONNECTION"].split()
    except (KeyError, ValueError):
        return ""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    login = f"-p {port} " if port != "22" else ""
    user = os.environ.get("USER", "")
    return f"ssh {login}-L {parts.port}:{host}:{parts.port} {f'{user}@' if user else ''}{address}"
