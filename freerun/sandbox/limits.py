"""What a program in the sandbox may use. Time and memory are settings, the rest is fixed."""

from typing import NamedTuple

MAX_PROCESSES = 16
"""Processes and threads together, the program included."""
FILE_BYTES = 1 << 20
"""Size limit of a file; output goes to a file, so this limits it too."""
DIRECTORY_BYTES = 8 << 20
"""All files of the program together."""
DIRECTORY_FILES = 1024
OPEN_FILES = 64
STACK_BYTES = 8 << 20
MESSAGE_BYTES = 16 << 20
"""One call or one result between program and tests."""


class Limits(NamedTuple):
    """Limits of one execution."""

    seconds: float = 8.0
    """Wall clock, from the start to the verdict; then all processes are killed."""
    memory_bytes: int = 512 << 20
    """Address space of each process."""
