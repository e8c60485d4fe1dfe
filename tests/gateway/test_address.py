"""Where the gateway listens: loopback and its names, public addresses, what is no address."""

import socket

import pytest

from freerun.errors import ConfigError
from freerun.gateway.address import Address, is_name_of_loopback, listen, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("localhost:8000", Address("localhost", 8000)),
        ("[::1]:65535", Address("::1", 65535)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8000", ":8000", "::1:8000", "[]:1", "host:", "host:eight", "host:65536", "host:-1"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway: (address|port) "):
        parse_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1"])
def test_loopback_is_private(host: str) -> None:
    assert Address(host, 1).is_loopback


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", "", "127.0.0.1.nip.io"]
)
def test_everything_else_is_public(host: str) -> None:
    assert not Address(host, 1).is_loopback


@pytest.mark.parametrize(
    "header", ["localhost", "localhost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"]
)
def test_a_host_header_may_name_loopback_with_any_port(header: str) -> None:
    assert is_name_of_loopback(header)


@pytest.mark.parametrize(
    "header", ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example", ":80", "[", "]:1"]
)
def test_a_host_header_of_another_name_is_noticed(header: str) -> None:
    assert not is_name_of_loopback(header)


def test_a_busy_port_is_an_error_that_says_what_to_set() -> None:
    with listen(Address("localhost", 0)) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(
            ConfigError, match=rf"cannot listen on 127.0.0.1:{port} .*; set another gateway.address"
        ):
            listen(Address("127.0.0.1", port))


def test_connections_send_at_once() -> None:
    with listen(Address("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        connection, _ = server.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_host_that_does_not_exist_is_an_error_too() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on no-such-host.invalid:1 "):
        listen(Address("no-such-host.invalid", 1))


def test_the_url_has_brackets_around_ipv6() -> None:
    assert Address("::1", 8000).url == "http://[::1]:8000/v1"
    assert Address("127.0.0.1", 8000).url == "http://127.0.0.1:8000/v1"
