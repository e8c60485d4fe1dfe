"""What a hostile or broken client can do to the page: nothing that others notice."""

import http.client
import json
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from served_pages import TOKEN, ServedPage, served

from freerun.dashboard import connections, server
from freerun.dashboard.access import SECURITY_HEADERS
from freerun.dashboard.connections import MAX_CONNECTIONS
from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.source import Source

HEAD = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"


def status_of(connection: socket.socket) -> int:
    """The status of the answer, which must have the headers of every other."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    return answer.status


def test_a_head_that_does_not_end_gets_431(page: ServedPage) -> None:
    with page.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
        assert status_of(connection) == 431


def test_a_head_that_is_too_long_gets_431(page: ServedPage) -> None:
    with page.connect() as connection:
        connection.sendall(f"GET / HTTP/1.1\r\n{HEAD}X: {'x' * 20_000}\r\n\r\n".encode())
        assert status_of(connection) == 431


def test_what_is_not_http_gets_400(page: ServedPage) -> None:
    with page.connect() as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert status_of(connection) == 400


@pytest.mark.parametrize(
    "kind", ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
)
def test_a_body_gets_413(page: ServedPage, kind: str) -> None:
    with page.connect() as connection:
        connection.sendall(f"GET / HTTP/1.1\r\n{HEAD}{kind}".encode())
        assert status_of(connection) == 413
        while connection.recv(1000):  # its connection is closed
            pass


def test_a_body_of_64_mib_is_not_taken_in(page: ServedPage) -> None:
    before = psutil.Process().memory_info().rss
    with page.connect() as connection:
        connection.sendall(f"POST / HTTP/1.1\r\n{HEAD}Content-Length: {64 << 20}\r\n\r\n".encode())
        assert status_of(connection) == 413
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(bytes(64 << 20))  # it is not read
    assert psutil.Process().memory_info().rss - before < 40 << 20
    assert page.ask("/metrics").status == 200


def test_a_head_that_comes_too_slowly_gets_408(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 2.0)
    with page.connect() as silent, page.connect() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: local")
        assert status_of(slow) == 408
        assert status_of(silent) == 408


def test_connections_beyond_the_limit_get_503_and_later_ones_are_served_again(page: ServedPage) -> None:
    opened = [page.connect() for _ in range(MAX_CONNECTIONS)]
    try:
        for connection in opened:  # the page knows of each of them
            connection.sendall(f"GET /metrics HTTP/1.1\r\n{HEAD}\r\n".encode())
            assert status_of(connection) == 200
        with page.connect() as one_more:
            assert status_of(one_more) == 503
    finally:
        for connection in opened:
            connection.close()
    assert _served_again(page)


def _served_again(page: ServedPage) -> bool:
    """Closed connections are forgotten soon, not at once."""
    return any(page.ask("/metrics").status == 200 for _ in range(1000))


def test_an_answer_that_takes_too_long_is_503_with_the_reason(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()

    def hang(source: object, params: object) -> object:
        return os.read(read, 1).decode()

    monkeypatch.setitem(FEEDS, "run", hang)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    try:
        reply = page.ask("/api/run")
    finally:
        os.write(write, b"x")
    assert reply.status == 503
    assert b"took longer than" in reply.body
    os.close(read)
    os.close(write)


def test_a_question_that_takes_too_long_is_interrupted_and_the_next_one_is_answered(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def count_for_ever(source: Source, params: object) -> object:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        try:
            with source.reader() as reader:
                return reader.plain_rows(numbers)
        finally:
            ended.set()

    monkeypatch.setitem(FEEDS, "run", count_for_ever)
    with monkeypatch.context() as patch:
        patch.setattr(server, "REQUEST_SECONDS", 0.2)
        reply = page.ask("/api/run")
    assert (reply.status, b"took longer than 0.2 s" in reply.body) == (503, True)
    assert ended.wait(60), "the thread of the feeds is free again"
    assert page.ask("/api/runs").status == 200


def test_an_answer_that_is_too_large_is_refused_with_the_remedy(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FEEDS, "run", lambda source, params: "x" * 2_000_001)
    reply = page.ask("/api/run")
    assert reply.status == 400
    assert b"smaller window" in reply.body


def test_a_feed_with_a_bug_is_an_answer_too(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEEDS, "run", lambda source, params: 1 / 0)
    assert page.ask("/api/run").status == 500
    assert page.ask("/api/runs").status == 200


def test_unknown_feeds_runs_and_bad_parameters_are_named(page: ServedPage) -> None:
    assert page.ask("/api/nothing").status == 404
    unknown = page.ask("/api/run?run=other")
    assert (unknown.status, b'no run \\"other\\"' in unknown.body) == (404, True)
    assert page.ask("/stream?run=other").status == 404


def test_a_bad_parameter_is_400_with_the_feeds_words(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, params: Mapping[str, str]) -> object:
        raise ValueError(f"step is a number, not {params['step']}")

    monkeypatch.setitem(FEEDS, "run", refuse)
    reply = page.ask("/api/run?step=many")
    assert (reply.status, json.loads(reply.body)) == (400, {"error": "step is a number, not many"})


def test_a_damaged_store_is_503_with_its_text(small_run: Path) -> None:
    (small_run / "store.sqlite").write_bytes(b"not a store" * 1000)
    with served(small_run.parent, small_run) as page:
        reply = page.ask("/api/run")
    assert reply.status == 503
    assert b"store.sqlite" in reply.body
