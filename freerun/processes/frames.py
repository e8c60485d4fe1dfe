"""Typed messages as length-prefixed msgpack frames: the one wire format between processes.

A frame is four bytes of length, big-endian, then the body. A decoder accepts exactly one union of
message structs, so a frame of the wrong kind is an error at the edge, not later.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Generic, TypeVar

import msgspec

from freerun.errors import WorkerError
from freerun.types import decoder_for, encode

MAX_FRAME_BYTES = 1 << 30
M = TypeVar("M")


def to_frame(message: Any) -> bytes:
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WorkerError(f"a message of {len(body)} bytes exceeds the frame limit of {MAX_FRAME_BYTES} bytes")
    return len(body).to_bytes(4, "big") + body


def _checked_length(header: bytes) -> int:
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise WorkerError(f"received a frame of {length} bytes, over the limit of {MAX_FRAME_BYTES} bytes")
    return length


class FrameReader(Generic[M]):
    """Blocking side: reads messages of one union from a socket."""

    def __init__(self, sock: socket.socket, message_type: Any) -> None:
        self._file = sock.makefile("rb")
        self._decoder: msgspec.msgpack.Decoder[M] = decoder_for(message_type)

    def read(self) -> M | None:
        """The next message, or None when the other side is gone."""
        try:
            header = self._file.read(4)
            if len(header) < 4:
                return None
            length = _checked_length(header)
            body = self._file.read(length)
        except ConnectionError:
            return None
        if len(body) < length:
            return None
        return self._decoder.decode(body)


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[M]) -> M | None:
    """The next message from an asyncio stream, or None when the other side is gone."""
    try:
        length = _checked_length(await reader.readexactly(4))
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return decoder.decode(body)
