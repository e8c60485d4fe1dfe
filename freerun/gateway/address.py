"""The address the gateway listens on, and the host names that clients may use for it.

Loopback is the default. There the `Host` header of a request must name loopback: otherwise a web page opened on
this machine could reach the gateway through a domain that it points at 127.0.0.1 (DNS rebinding). Any other
address is public and needs an explicit key; its clients may use any host name.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from functools import lru_cache

from freerun.errors import ConfigError

_MAX_PORT = 65535
_BACKLOG = 2048
"""Limit on connections waiting to be accepted, for many agents that start at once."""


@dataclass(frozen=True)
class Address:
    """A host, without brackets, and a port; port 0 takes a free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return _is_loopback(self.host)

    @property
    def url(self) -> str:
        """The base URL for OpenAI clients; Anthropic clients leave out `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


def parse_address(text: str) -> Address:
    """Parse `127.0.0.1:8000`, `localhost:0` or `[::1]:8000`."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or (":" in host and not is_bracketed):
        raise ConfigError(f'gateway: address "{text}" is not host:port, such as 127.0.0.1:8000 or [::1]:8000')
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _MAX_PORT:
        raise ConfigError(f'gateway: port "{port}" of address "{text}" is not a number from 0 to {_MAX_PORT}')
    return Address(host.strip("[]"), int(port))


def listen(address: Address) -> socket.socket:
    """A socket that accepts connections immediately; they wait until the event loop takes them."""
    try:
        # The name localhost may mean IPv6 only, which clients that try 127.0.0.1 would not reach.
        host = "127.0.0.1" if address.host == "localhost" else address.host
        [(family, *_, place), *_] = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
        sock = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"gateway: cannot listen on {address.host}:{address.port} ({error.strerror}); "
            "set another gateway.address"
        ) from error
    # Connections inherit the option. asyncio sets it only for sockets with a named protocol, and without it the
    # body of an answer waits 40 ms for the client to acknowledge the headers.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@lru_cache(maxsize=64)
def is_name_of_loopback(host_header: str) -> bool:
    """Whether a `Host` header names loopback, with any port: a tunnel may use another one."""
    host, _, port = host_header.rpartition(":")
    if not host or not port.isdigit():
        host = host_header
    return _is_loopback(host.removeprefix("[").removesuffix("]"))


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
