"""Typed messages as length-prefixed msgpack frames: the one wire format between processes.

A frame is four bytes of length, big-endian, then the body. A decoder accepts exactly one union of
message structs, so a frame of the wrong kind is an error where it arrives, not later.
"""

import asyncio
import socket
from typing import Any, Generic, TypeVar

import msgspec

from freerun.errors import WorkerError
from freerun.types import decoder_for, encode

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20
M = TypeVar("M")


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Heartbeat that every child sends once a second, busy or not; `Child` does not pass it on."""


def to_frame(message: Any) -> bytes:
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WorkerError(f"a message of {len(body)} bytes exceeds the frame limit of {MAX_FRAME_BYTES} bytes")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def _checked_length(header: bytes | bytearray) -> int:
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise WorkerError(f"received a frame of {length} bytes, over the limit of {MAX_FRAME_BYTES} bytes")
    return length


class MessageDecoder(Generic[M]):
    """Decodes the messages of one union from frames; anything else is a `WorkerError`."""

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = decoder_for(message_type)

    def decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise WorkerError(f"received an unexpected message of {len(body)} bytes: {error}") from error


class FrameReader(Generic[M]):
    """Blocking reader of one union's messages from a socket."""

    def __init__(self, sock: socket.socket, message_type: Any) -> None:
        self._file = sock.makefile("rb")
        self._decoder: MessageDecoder[M] = MessageDecoder(message_type)

    def read(self) -> M | None:
        """The next message; None when the other side is gone."""
        try:
            header = self._file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                return None
            length = _checked_length(header)
            body = self._file.read(length)
        except ConnectionError:
            return None
        if len(body) < length:
            return None
        return self._decoder.decode(body)


class FrameStream:
    """Asyncio reader of frame bodies; cancelling a read loses nothing."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._arrived = bytearray()
        """Bytes read so far; they begin at the start of a frame."""

    async def read(self) -> bytes | None:
        """The body of the next frame; None when the other side is gone."""
        try:
            while (body := self._take_body()) is None:
                # Frames come in bursts: take all that has arrived.
                if not (chunk := await self._reader.read(CHUNK_BYTES)):
                    return None
                self._arrived += chunk
        except ConnectionError:
            return None
        return body

    def _take_body(self) -> bytes | None:
        """The body of the first frame, if it is complete."""
        if len(self._arrived) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + _checked_length(self._arrived[:HEADER_BYTES])
        if len(self._arrived) < end:
            return None
        body = bytes(self._arrived[HEADER_BYTES:end])
        del self._arrived[:end]
        return body
