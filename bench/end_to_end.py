"""Whole runs compared: how long the same number of trajectories takes, and whether the models learn equally well.

A side is one way to use the same two cores. Every side trains the same number of steps on the same prompts from
the same model. Its figure is trained trajectories per second, from the moment the first weights are in an engine
to the end of the last step. Filling the pipeline is included.
"""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import ROOT, show
from bench.runs import train
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader

QUIET = ("--eval.every_steps", "100000", "--eval.num_prompts", "1", "--checkpoint.every_steps", "100000")

Overrides = tuple[str, ...]

ASYNCHRONOUS: dict[str, Overrides] = {
    "one engine, which lends its core": (),
    "one engine and one trainer, each on its core": ("--train.num_threads", "1"),
    "two engines, which lend their cores": ("--engine.num_workers", "2"),
}
"""Ways to use the cores; each side of a comparison uses its fastest."""

BOTH_CORES: dict[str, Overrides] = {
    "two engines, which lend their cores": ("--engine.num_workers", "2"),
    "one engine and one trainer of two threads": ("--engine.num_threads", "2", "--train.num_threads", "2"),
    "two engines, two trainer ranks": ("--engine.num_workers", "2", "--train.num_ranks", "2"),
}
"""Ways that give both cores to generation and training alternately, for synchronous runs."""

SYNCHRONOUS = ASYNCHRONOUS | BOTH_CORES
TRIAL_SHARE = 0.4
"""Share of a run's steps in the trial runs that find the fastest way."""


@dataclass
class Figures:
    """The figures of one side, one entry per run."""

    trajectories_per_second: list[float] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)


class EndToEnd:
    """Runs of one recipe in a scratch directory."""

    def __init__(self, recipe: Path, runs: Path, *, num_steps: int, overrides: Sequence[str] = ()) -> None:
        self._recipe = recipe
        self._runs = runs
        self._start = [*overrides, *QUIET]
        self._num_steps = num_steps
        self._num_runs = 0

    def run(self, overrides: Overrides, *, seed: int, figures: Figures) -> float:
        """One run; returns trained trajectories per second."""
        self._num_runs += 1
        name = f"run-{self._num_runs}"
        overrides = ("--train.num_steps", str(self._num_steps), *overrides, "--run.seed", str(seed))
        with train(self._recipe, self._runs, name, *self._start, *overrides) as reader:
            details = describe(reader)
        figures.trajectories_per_second.append(details["trajectories_per_second"])
        figures.details.append(details)
        figures.runs.append(self._runs / name)
        speed: float = details["trajectories_per_second"]
        show(f"  {speed:.4g} trajectories/s, {details['tokens_per_second']:.4g} tokens/s")
        return speed

    def fastest(self, ways: Mapping[str, Overrides], *always: str) -> tuple[str, dict[str, float]]:
        """The fastest way in one run each, and the speed of all."""
        tried = {}
        num_steps = ("--train.num_steps", str(math.ceil(TRIAL_SHARE * self._num_steps)))
        for name, overrides in ways.items():
            show(f"{name}:")
            tried[name] = self.run((*overrides, *always, *num_steps), seed=1000, figures=Figures())
        return max(tried, key=lambda name: tried[name]), tried

    def alternately(self, sides: Mapping[str, Overrides], *, repetitions: int) -> dict[str, Figures]:
        """Every side once per repetition, with the repetition's seed, in alternating order."""
        figures = {side: Figures() for side in sides}
        for repetition in range(repetitions):
            order = list(sides) if repetition % 2 == 0 else list(sides)[::-1]
            for side in order:
                show(f"repetition {repetition + 1}, {side}:")
                self.run(sides[side], seed=repetition, figures=figures[side])
        return figures


def describe(reader: RunReader) -> dict[str, Any]:
    """Speed, and the busy share of each process."""
    steps = reader.steps()
    state = RunState()
    for event in reader.events():
        if event.seconds <= steps[-1].seconds:  # not the last evaluation, which has the machine to itself
            state(event)
    seconds = steps[-1].seconds - min(event.seconds for event in reader.events("weights_loaded"))
    return {
        "trajectories_per_second": sum(sum(step.staleness_counts.values()) for step in steps) / seconds,
        "tokens_per_second": sum(step.metrics["num_tokens"] for step in steps) / seconds,
        "generated_tokens_per_second": state.engine_total("num_tokens") / seconds,
        "seconds": seconds,
        "engines_busy": {name: engine.total("busy_seconds") / seconds for name, engine in state.engines.items()},
        "trainer_busy": sum(step.step_seconds for step in steps) / seconds,
        "borrowed": state.borrowed_seconds / seconds,
        "max_staleness": max(max(step.staleness_counts) for step in steps),
        "mean_length": statistics.mean(step.metrics["completion_length"] for step in steps),
    }


def held_out_accuracy(run: Path, *overrides: str) -> float:
    """Held-out accuracy of a run's final model."""
    command = [sys.executable, "-m", "freerun.cli.main", "eval", str(run), "--json", "--k", "1", *overrides]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return float(json.loads(shown)["pass_at"]["1"]["value"])
