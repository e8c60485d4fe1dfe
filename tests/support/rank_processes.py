"""Runs a script as several ranks: `SCRIPT RANK NUM_RANKS ARGUMENT ... [ADDRESS]`; rank 0 prints the address."""

import os
import select
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def run_ranks(script: str, num_ranks: int, *arguments: str) -> None:
    """Returns when all ranks have ended well."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent}:{TESTS / 'support'}", "OMP_NUM_THREADS": "1"}

    def command(rank: int, *address: str) -> list[str]:
        return [sys.executable, script, str(rank), str(num_ranks), *arguments, *address]

    processes: list[subprocess.Popen[str]] = []
    try:
        first = subprocess.Popen(command(0), stdout=subprocess.PIPE, text=True, env=environment)
        processes.append(first)
        assert first.stdout is not None
        assert select.select([first.stdout], [], [], 60)[0], "waited 60 s for the address of rank 0"
        address = first.stdout.readline().strip()
        for rank in range(1, num_ranks):
            processes.append(subprocess.Popen(command(rank, address), text=True, env=environment))
        for rank, process in enumerate(processes):
            assert process.wait(timeout=120) == 0, f"rank {rank} failed"
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()
