"""Ports for servers that tests start, end and start again: no other process is given them in between."""

import os
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that Linux chooses itself, for clients and for servers that ask for any."""


def free_port() -> int:
    """A port that nobody listens on; processes of tests begin to look in different places."""
    for offset in range(LAST - FIRST):
        port = FIRST + (7 * os.getpid() + offset) % (LAST - FIRST)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port between {FIRST} and {LAST} is free")
