"""How a claim is measured: two sides do the same work alternately in one process run; the figure is the ratio.

    claim.py ─► Side (process, own environment) ─┐
             ─► Side                             ├─► alternately ─► Result ─► docs/results/speed/<claim>.json
                                                 ┘
A repetition measures each side once, back to back, and gives one ratio: a slow phase of the machine affects both.
Reported are the median ratio and the range over the repetitions.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOAD_BEFORE = os.getloadavg()[0]
"""Load average before the measurement."""
RESULTS = ROOT / "docs/results/speed"
SIDES = Path(__file__).parent / "sides"


class Side:
    """One side of a comparison: a process that works on request."""

    def __init__(
        self,
        script: str,
        *arguments: str,
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
        cores: tuple[int, ...] = (),
    ) -> None:
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        self._process = subprocess.Popen(
            [*pinned, str(python), str(SIDES / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self._read()

    def ask(self, **work: Any) -> dict[str, Any]:
        """Send work and wait for the figures."""
        assert self._process.stdin is not None
        print(json.dumps(work), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Result:
    """One row of the table."""

    claim: str
    peer: str
    at_least: float
    aim: float
    unit: str
    ours: list[float]
    theirs: list[float]
    """One per repetition. Empty if the claim is not a ratio; `ours` is then the figure itself."""
    lower_is_better: bool = False
    """Memory, time lost: the figure must be at most `at_least`."""
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        if not self.theirs:
            return self.ours
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def is_met(self) -> bool:
        median = statistics.median(self.ratios)
        return median <= self.at_least if self.lower_is_better else median >= self.at_least


def at_most(
    claim: str,
    limit: float,
    unit: str,
    ours: list[float],
    settings: Mapping[str, Any],
    *,
    peer: str = "",
    aim: float = 0.0,
    note: str = "",
) -> Result:
    """A figure of ours that has a limit, and nothing that it could be divided by."""
    return Result(
        claim, peer, limit, aim, unit, ours, [], lower_is_better=True, settings=dict(settings), note=note
    )


def alternately(*sides: Callable[[], float], repetitions: int, warms_up: bool = True) -> tuple[list[float], ...]:
    """Measure every side once per repetition, after a warm-up; every other repetition reverses the order."""
    figures: tuple[list[float], ...] = tuple([] for _ in sides)
    for repetition in range(-1 if warms_up else 0, repetitions):
        order = range(len(sides)) if repetition % 2 == 0 else range(len(sides))[::-1]
        latest = dict(sorted((side, sides[side]()) for side in order))
        show(f"  repetition {repetition + 1}: " + " against ".join(f"{figure:.4g}" for figure in latest.values()))
        if repetition >= 0:
            for side, figure in latest.items():
                figures[side].append(figure)
    return figures


def record(name: str, *results: Result) -> None:
    """Write the results of one claim, with the machine and the commit."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            **asdict(result),
            "median": statistics.median(result.ratios),
            "range": [min(result.ratios), max(result.ratios)],
            "is_met": result.is_met,
        }
        for result in results
    ]
    command = f"python -m bench {name} --repetitions {len(results[0].ours)}"
    document = {"command": command, "machine": machine(), "results": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    for result, row in zip(results, rows, strict=True):
        low, high = row["range"]
        verdict = "met" if result.is_met else "NOT MET"
        show(f"{result.claim}, {result.peer}: {row['median']:.3g} ({low:.3g}-{high:.3g}); {verdict}")


def machine() -> dict[str, Any]:
    """The machine and the commit of a measurement."""
    with open("/proc/cpuinfo") as cpuinfo:
        models = [line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")]
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": LOAD_BEFORE,
        "date": time.strftime("%Y-%m-%d"),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
    }


def show(line: str) -> None:
    print(line, flush=True)
