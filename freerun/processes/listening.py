"""A listening socket on the requested port, or on the next free one."""

import errno
import ipaddress
import socket

MAX_TRIED_PORTS = 200
_LAST_PORT = 65535
_BACKLOG = 64


def listen_nearby(host: str, port: int) -> socket.socket:
    """A socket that accepts connections immediately; raises `OSError` if none of the ports is free."""
    # The name localhost may mean IPv6 only, which clients that try 127.0.0.1 would not reach.
    address = "127.0.0.1" if host == "localhost" else host
    last = min(port + MAX_TRIED_PORTS, _LAST_PORT) if port else 0
    for number in range(port, last + 1):
        try:
            [(family, *_, place), *_] = socket.getaddrinfo(address, number, type=socket.SOCK_STREAM)
            sock = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or number == last:
                raise
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise AssertionError("the loop returns or raises")


def is_loopback(host: str) -> bool:
    """Whether a socket that listens on this host is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
