"""Requests to the page of a run in another process, by its link."""

import errno
import http.client
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from freerun.events.page_link import read_link

WAIT_SECONDS = 60.0


def wait_for_link(run: Path) -> str:
    until(lambda: bool(read_link(run)), "a link")
    return read_link(run)


def port_of(link: str) -> int:
    port = urlsplit(link).port
    assert port is not None
    return port


def is_closed(link: str) -> bool:
    """Whether no program listens there any more."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port_of(link))) == errno.ECONNREFUSED


def ask(link: str, path: str = "/metrics") -> tuple[int, bytes]:
    """The status and the body of an answer, with the link's token."""
    connection = connect(link, path)
    try:
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answers(link: str) -> bool:
    """Whether the page answers; one that is just starting may still close the connection."""
    try:
        return ask(link)[0] == 200
    except OSError:
        return False


def connect(link: str, path: str) -> http.client.HTTPConnection:
    """A connection on which this path was asked for."""
    token = parse_qs(urlsplit(link).query)["token"][0]
    connection = http.client.HTTPConnection("127.0.0.1", port_of(link), timeout=WAIT_SECONDS)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    return connection


def until(happened: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)
