"""Chance that depends on what it decides, not on what was decided before.

With one stream of random numbers, a fault that is left out shifts all numbers after it, and the run takes another
course. Here each number is a hash of the seed and of the name of what it is for. It is the same in every process:
none depends on Python's own `hash`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def share(self, *what: str | int) -> float:
        """At least 0 and less than 1."""
        digest = blake2b(repr((self.seed, *what)).encode(), digest_size=7).digest()
        return int.from_bytes(digest) / 2**56

    def choose(self, options: Sequence[T], *what: str | int) -> T:
        return options[int(self.share(*what) * len(options))]
