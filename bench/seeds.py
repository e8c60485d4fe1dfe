"""How many scenarios with faults are played in a second: python -m bench.seeds [NUM_SEEDS] [NUM_PROCESSES]."""

import asyncio
import sys
import time

from freerun.simulation.faults.seeds import play_seeds

DEFAULT_SEEDS = 1000


def main(num_seeds: int = DEFAULT_SEEDS, num_processes: int = 1) -> None:
    began = time.perf_counter()
    totals = asyncio.run(play_seeds(0, num_seeds, num_processes=num_processes, on_result=lambda totals: None))
    seconds = time.perf_counter() - began
    rate = num_seeds / seconds
    print(f"{num_seeds:,} seeds on {num_processes} processes: {rate:.1f} a second, {len(totals.broken)} broken")
    print(f"{totals.outcomes.total():,} sessions, {totals.faults.total():,} faults; 100,000 seeds take")
    print(f"{100_000 / rate / 60:.0f} minutes at this rate")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
