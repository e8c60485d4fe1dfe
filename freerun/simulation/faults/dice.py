"""Random numbers that depend on what they decide, not on earlier decisions.

With one stream of random numbers, leaving out a fault would shift all numbers after it, and the run would take
another course. Here each number is a hash of the seed and of the name of its purpose. It is the same in every
process, since it does not use Python's own `hash`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """The random numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def share(self, *what: str | int) -> float:
        """A number of at least 0 and less than 1."""
        digest = blake2b(repr((self.seed, *what)).encode(), digest_size=7).digest()
        return int.from_bytes(digest) / 2**56

    def choose(self, options: Sequence[T], *what: str | int) -> T:
        return options[int(self.share(*what) * len(options))]
