"""What a stage says when a value of its configuration makes no sense.

Every number has a range. The upper ends are not tuned: they lie beyond what any machine can do, and below what
hangs a run, overflows or runs out of memory long after it was started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freerun.errors import ConfigError

MAX_NAME_BYTES = 255
"""Of one part of a path, on every usual file system."""
MAX_PATH_BYTES = 4095


@dataclass(frozen=True)
class Range:
    """The values that a number may have, both ends included unless said otherwise."""

    low: float
    high: float
    excludes_low: bool = False
    excludes_high: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = value > self.low if self.excludes_low else value >= self.low
        return is_above and (value < self.high if self.excludes_high else value <= self.high)

    def __str__(self) -> str:
        low, high = (
            f"{end:,}" if isinstance(end, int) else f"{end:g}".replace("e-0", "e-").replace("e+0", "e")
            for end in (self.low, self.high)
        )
        if self.excludes_low or self.excludes_high:
            return f"in {'(' if self.excludes_low else '['}{low}, {high}{')' if self.excludes_high else ']'}"
        return f"between {low} and {high}"


PROCESSES = Range(1, 1024)
THREADS = Range(0, 1024)
GROUPS = Range(1, 65_536)
"""Prompts of a step, completions of a prompt, sequences of an engine."""
COUNT = Range(1, 1_000_000_000)
COUNT_OR_NONE = Range(0, 1_000_000_000)
TOKENS = COUNT
SECONDS = Range(0.001, 31_536_000)
LEARNING_RATE = Range(1e-20, 10)
FACTOR = Range(1e-9, 1e9)
"""A scale, a limit or a weight, that a float32 can hold and divide by."""
COEFFICIENT = Range(0, 1e9)
SHARE = Range(0, 1)
SHARE_BELOW_ONE = Range(0, 1, excludes_high=True)
SHARE_ABOVE_NONE = Range(0, 1, excludes_low=True)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(f"config: {message}")


def require_ranges(section: str, stage: Any, **ranges: Range) -> None:
    """Refuse a number of the stage that lies outside its range."""
    for name, allowed in ranges.items():
        value = getattr(stage, name)
        require(value in allowed, f"{section}.{name} = {value} must lie {allowed}")


def require_paths(section: str, stage: Any, *names: str) -> None:
    """Refuse a path that no file can have."""
    for name in names:
        path = getattr(stage, name)
        require("\0" not in path, f"{section}.{name} holds a NUL character, which no path can have")
        sizes = [len(part.encode(errors="surrogatepass")) for part in (path, *path.split("/"))]
        require(
            sizes[0] <= MAX_PATH_BYTES and max(sizes[1:]) <= MAX_NAME_BYTES,
            f'{section}.{name} = "{path[:40]}..." is too long for a path: {sizes[0]:,} bytes; at most '
            f"{MAX_PATH_BYTES:,} in all and {MAX_NAME_BYTES} between slashes",
        )
