"""Prints the results of `freerun simulate --faults`: one seed in full, or progress and totals of many."""

import asyncio
import os
import sys
import time

from freerun.simulation.faults.play import Played, play
from freerun.simulation.faults.scenario import make_scenario
from freerun.simulation.faults.seeds import SeedTotals, play_seeds
from freerun.simulation.faults.shrinking import shrink

_TOLD_EVERY_SECONDS = 1.0
_MAX_LISTED = 10
"""Number of violating seeds to list."""


def show_seed(seed: int) -> int:
    """Print a scenario with its timeline; if it breaks a property, also the smallest scenario that does."""
    played = play(make_scenario(seed))
    _show(played)
    if played.violation is None:
        return 0
    smallest = shrink(played)
    if smallest is not played:
        print("\nthe smallest scenario that breaks it:\n")
        _show(smallest)
    return 1


def _show(played: Played) -> None:
    print("\n".join([*played.scenario.describe(), "", *played.timeline, ""]))
    broken = played.violation
    if broken is None:
        print(f"all properties hold; sessions: {', '.join(played.outcomes)}")
    else:
        print(f"broken in session {broken.session} after {broken.seconds:.3f} s: {broken}")


def play_many(first: int, num_seeds: int, *, num_processes: int) -> int:
    """Play seeds with a progress line; returns 1 if one of them violates a property."""
    progress = _Progress(num_seeds)
    totals = asyncio.run(
        play_seeds(first, num_seeds, num_processes=num_processes or os.cpu_count() or 1, on_result=progress.tell)
    )
    progress.end()
    print(f"{totals.num_seeds:,} seeds, {totals.outcomes.total():,} sessions, {totals.faults.total():,} faults")
    print("sessions: " + _counts(totals.outcomes))
    print("faults: " + _counts(totals.faults))
    for result in totals.broken[:_MAX_LISTED]:
        print(f"seed {result.seed}: {result.violation}")
    if not totals.broken:
        print("all properties hold")
        return 0
    print(f"{len(totals.broken)} seeds break a property; freerun simulate --faults --seed {totals.broken[0].seed}")
    return 1


def _counts(counter: "dict[str, int]") -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counter.items(), key=lambda item: -item[1]))


class _Progress:
    """A progress line that is overwritten; only on a terminal."""

    def __init__(self, num_seeds: int) -> None:
        self._num_seeds = num_seeds
        self._began = time.monotonic()
        self._next = self._began + _TOLD_EVERY_SECONDS
        self._is_shown = sys.stderr.isatty()

    def tell(self, totals: SeedTotals) -> None:
        now = time.monotonic()
        if self._is_shown and now >= self._next:
            self._next = now + _TOLD_EVERY_SECONDS
            rate = totals.num_seeds / (now - self._began)
            minutes = (self._num_seeds - totals.num_seeds) / rate / 60
            line = (
                f"{totals.num_seeds:,} of {self._num_seeds:,} seeds, {len(totals.broken)} broken, "
                f"{rate:.0f} a second, {minutes:.0f} minutes left"
            )
            print(f"\r{line:<79}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_shown:
            print(f"\r{'':<79}\r", end="", file=sys.stderr, flush=True)
