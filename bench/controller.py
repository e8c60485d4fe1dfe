"""How much the controller can drive, and what it costs.

Two independent figures: trajectories per second of a run whose workers answer immediately, which leaves the
controller's process as the only limit; and the CPU time of that process in real runs, between the first and the
last step.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.harness import ROOT, Result, record, show
from bench.runs import EUCLID, euclid_start
from bench.sides.simulated import COMPLETION_TOKENS
from freerun.events.reader import RunReader

SIMULATED_STEPS = 60
FIRST_STEPS = 5
"""Not measured: the workers start, the buffer fills."""
NUM_GRADERS = 4
"""A grader process grades one completion at a time; a single one would mostly wait for messages."""
REAL_RUNS = {EUCLID: 200, ROOT / "recipes/times-tables.toml": 4}
"""Recipes and steps: enough steps of the short recipe to make the concurrent first evaluation negligible."""
QUIET = ["--eval.every_steps", "100000", "--checkpoint.every_steps", "100000"]
BATCH = ["--sampling.group_size", "8", "--train.prompts_per_step", "32", "--engine.num_slots", "128"]


def measure(repetitions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="freerun-controller-") as scratch:
        rates = [_rate(Path(scratch), repetition) for repetition in range(repetitions)]
        costs = {
            recipe: [
                _cost(recipe, Path(scratch), f"{recipe.stem}-{repetition}") for repetition in range(repetitions)
            ]
            for recipe in REAL_RUNS
        }
    settings = {"group_size": 8, "completion_tokens": COMPLETION_TOKENS, "graders": NUM_GRADERS}
    record(
        "controller",
        Result(
            claim="controller, rollouts driven with simulated workers",
            peer="",
            at_least=2000,
            aim=5000,
            unit="/s",
            ours=rates,
            theirs=[],
            settings=settings,
            note="Controller, store, sockets and processes are real; engine, trainer and four graders are not.",
        ),
        *(
            Result(
                claim=f"controller, CPU share of a real run of {recipe.stem}",
                peer="",
                at_least=5,
                aim=0,
                unit=" %",
                ours=[cost.percent for cost in repeated],
                theirs=[],
                lower_is_better=True,
                settings={"recipe": str(recipe.relative_to(ROOT)), "steps": REAL_RUNS[recipe]},
                note="CPU time of the controller's process, all threads, over wall clock; 100 % is one core. "
                f"{statistics.median(cost.num_per_second for cost in repeated):.3g} trajectories per second, "
                f"{statistics.median(cost.milliseconds for cost in repeated):.2g} ms each. The cost of a "
                "trajectory hardly depends on the model.",
            )
            for recipe, repeated in costs.items()
        ),
    )


def _rate(scratch: Path, repetition: int) -> float:
    """Trajectories per second between the first steps and the last."""
    name = f"simulated-{repetition}"
    overrides = ["--run.directory", str(scratch), "--run.name", name, "--train.num_steps", str(SIMULATED_STEPS)]
    overrides += [*QUIET, *BATCH, "--reward.num_workers", str(NUM_GRADERS)]
    command = [sys.executable, "-m", "bench.simulated_run", str(EUCLID), *euclid_start(), *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    with RunReader(scratch / name) as reader:
        steps = reader.steps()
    num_trajectories = sum(sum(step.staleness_counts.values()) for step in steps[FIRST_STEPS:])
    rate = num_trajectories / (steps[-1].seconds - steps[FIRST_STEPS - 1].seconds)
    show(f"  repetition {repetition + 1}: {rate:,.0f} rollouts/s")
    return rate


@dataclass(frozen=True)
class Cost:
    """The controller's process in one run."""

    percent: float
    """Of one core."""
    num_per_second: float
    """Trajectories trained on."""

    @property
    def milliseconds(self) -> float:
        """CPU milliseconds per trajectory."""
        return 10 * self.percent / self.num_per_second


def _cost(recipe: Path, scratch: Path, name: str) -> Cost:
    """CPU time of the controller's own process between the first and the last step, over the time between them."""
    start = euclid_start() if recipe == EUCLID else []
    command = [sys.executable, "-m", "freerun.cli.main", "train", str(recipe), *start, *QUIET]
    command += ["--run.directory", str(scratch), "--run.name", name, "--train.num_steps", str(REAL_RUNS[recipe])]
    clocks = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        process = psutil.Process(run.pid)
        assert run.stdout is not None
        for line in run.stdout:
            if re.search(r"  step \d+/", line):
                times = process.cpu_times()
                clocks.append((time.monotonic(), times.user + times.system))
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {run.returncode}")
    (begin, cpu_before), (end, cpu_after) = clocks[0], clocks[-1]
    with RunReader(scratch / name) as reader:
        num_trained = sum(sum(step.staleness_counts.values()) for step in reader.steps()[1:])
    seconds = end - begin
    cost = Cost(percent=100 * (cpu_after - cpu_before) / seconds, num_per_second=num_trained / seconds)
    show(f"  {recipe.stem}: {cost.percent:.2f} % of {seconds:.1f} s, {cost.milliseconds:.2f} ms a trajectory")
    return cost
