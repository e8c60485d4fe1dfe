"""Limits of a program in the sandbox. Time and memory are settings, the rest is fixed."""

from typing import NamedTuple

MAX_PROCESSES = 16
"""Limit on processes and threads together, including the program."""
FILE_BYTES = 1 << 20
"""Limit on the size of a file, and so of the output, which goes to a file."""
DIRECTORY_BYTES = 8 << 20
"""Limit on all files of the program together."""
DIRECTORY_FILES = 1024
OPEN_FILES = 64
STACK_BYTES = 8 << 20
MESSAGE_BYTES = 16 << 20
"""Limit on one call or one result between program and tests."""


class Limits(NamedTuple):
    """Limits of one execution."""

    seconds: float = 8.0
    """Wall-clock time from the start to the verdict; then all processes are killed."""
    memory_bytes: int = 512 << 20
    """Address space per process."""
