"""Handles output that cannot be written: a closed pipe (`| head -1`), or a full disk.

A run continues silently and ends with its own status: its store has everything. Any other command ends: quietly
if the pipe was closed, with an error otherwise. Errors of stderr are always ignored.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from freerun.errors import FreerunError

NUM_STANDARD = 3


def harmless(text: str) -> str:
    """Escape control characters, as in an error that quotes a row of data or in a policy's text."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class ReaderGoneError(Exception):
    """The reader has closed the pipe. Not an OSError: rich would end the process on a BrokenPipeError."""


class OutputStream:
    """A text stream that is written to until that fails."""

    def __init__(self, stream: TextIO, *, is_needed: bool) -> None:
        self._stream = stream
        self._is_needed = is_needed
        self._is_gone = False
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal may not support a character

    def write(self, text: str) -> int:
        if not self._is_gone:
            with self._watched():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        if not self._is_gone:
            with self._watched():
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._leave()
            if self._is_needed and isinstance(error, BrokenPipeError):
                raise ReaderGoneError from error
            if self._is_needed:
                raise FreerunError(f"cannot write the output: {error.strerror}") from error

    def _leave(self) -> None:
        """Stop writing; redirect buffered output to /dev/null, or Python would complain on exit."""
        self._is_gone = True
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


@contextlib.contextmanager
def standard_streams(*, is_output_needed: bool) -> Iterator[None]:
    """Within this context, stdout and stderr are written to until that fails."""
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    # Either is None if it was closed before we started (`>&-`); print then does nothing.
    sys.stdout, sys.stderr = (
        cast("TextIO", stream and OutputStream(stream, is_needed=is_output_needed and stream is before[0]))
        for stream in before
    )
    try:
        yield
    finally:
        with contextlib.suppress(ReaderGoneError, FreerunError):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        sys.stdout, sys.stderr = before


def _occupy_standard_descriptors() -> None:
    """Otherwise a file opened later could get the descriptor of a closed stream, and its output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < NUM_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
