"""Plays many seeds in several processes: each plays every n-th seed and prints one JSON line per seed."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from freerun.errors import WorkerError
from freerun.processes.interpreter import python_command
from freerun.simulation.faults.play import play
from freerun.simulation.faults.scenario import make_scenario

_MODULE = "freerun.simulation.faults.seeds"


class SeedResult(msgspec.Struct, frozen=True):
    """The result of one seed."""

    seed: int
    outcomes: list[str]
    """Outcomes of its sessions."""
    faults: list[str]
    """Kinds of the injected faults."""
    property: int = 0
    """Number of the violated property; 0 if all hold."""
    violation: str = ""


@dataclass
class SeedTotals:
    """Sums over results."""

    num_seeds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[SeedResult] = field(default_factory=list)

    def add(self, result: SeedResult) -> None:
        self.num_seeds += 1
        self.outcomes.update(result.outcomes)
        self.faults.update(result.faults)
        if result.property:
            self.broken.append(result)


def play_seed(seed: int) -> SeedResult:
    played = play(make_scenario(seed))
    faults = [fault.kind for fault in played.faults]
    if played.violation is None:
        return SeedResult(seed, [*played.outcomes], [*faults])
    return SeedResult(seed, [*played.outcomes], [*faults], played.violation.number, str(played.violation))


async def play_seeds(
    first: int, num_seeds: int, *, num_processes: int, on_result: Callable[[SeedTotals], None]
) -> SeedTotals:
    """Play seeds from `first` on; `on_result` is called after each one with the totals so far."""
    totals = SeedTotals()
    num_processes = min(num_processes, num_seeds)

    async def read(process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            totals.add(_DECODER.decode(line))
            on_result(totals)
        if await process.wait() != 0:
            raise WorkerError(f"a process that plays seeds ended with status {process.returncode}")

    command = python_command(_MODULE)
    processes = [
        await asyncio.create_subprocess_exec(
            *command, *map(str, (first + index, first + num_seeds, num_processes)), stdout=asyncio.subprocess.PIPE
        )
        for index in range(num_processes)
    ]
    try:
        await asyncio.gather(*map(read, processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    totals.broken.sort(key=lambda result: result.seed)
    return totals


_DECODER = msgspec.json.Decoder(SeedResult)


def main(first: int, end: int, stride: int) -> None:
    for seed in range(first, end, stride):
        sys.stdout.write(json.dumps(msgspec.to_builtins(play_seed(seed))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
