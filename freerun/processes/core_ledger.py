"""Which cores of which machine belong to whom, on a cluster whose scheduler counts cores but pins nothing.

Two nodes of a cluster may be one machine: cores are counted by machine, not by node.
"""

from __future__ import annotations

from collections.abc import Collection


class CoreLedger:
    """Cores that were given away, by worker."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, tuple[int, ...]]] = {}

    def take(self, worker: str, machine: str, allowed: Collection[int], num_cores: int) -> tuple[int, ...]:
        """Cores for the worker alone, the lowest that are free; none if there are not enough of them."""
        self.give_back(worker)
        used = [cores for where, cores in self._taken.values() if where == machine]
        free = sorted(set(allowed).difference(*used))
        # Part of what was asked for would be worse than none: its threads would crowd on it.
        cores = tuple(free[:num_cores]) if len(free) >= num_cores else ()
        self._taken[worker] = (machine, cores)
        return cores

    def give_back(self, worker: str) -> None:
        """The worker is gone; a no-op if it has none."""
        self._taken.pop(worker, None)
