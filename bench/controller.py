"""How much the controller can drive, and what it costs.

Independent figures: trajectories per second of a run whose workers answer immediately, which leaves the
controller's process as the only limit; and the CPU time of that process in real runs, between the first and the
last step: its share of a core, and for sessions its time for each call of the policy.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.harness import ROOT, Result, at_most, record, show
from bench.runs import EUCLID, euclid_start, train_command
from bench.sides.simulated import COMPLETION_TOKENS
from freerun.events.reader import RunReader

SIMULATED_STEPS = 60
FIRST_STEPS = 5
"""Not measured: the workers start, the buffer fills."""
NUM_GRADERS = 4
"""A grader process grades one completion at a time; a single one would mostly wait for messages."""
REAL_RUNS = {EUCLID: 200, ROOT / "recipes/times-tables.toml": 4}
"""Recipes and steps: enough steps of the short recipe to make the concurrent first evaluation negligible."""
SESSIONS = ROOT / "recipes/guessing.toml"
SESSION_STEPS = 30
SESSION_START = ("--sft.num_steps", "200", "--eval.num_prompts", "1")
"""So much SFT teaches the format of a guess; its first evaluation is a few sessions."""
QUIET = ["--eval.every_steps", "100000", "--checkpoint.every_steps", "100000"]
BATCH = ["--sampling.group_size", "8", "--train.prompts_per_step", "32", "--engine.num_slots", "128"]


def measure(repetitions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="freerun-controller-") as scratch:

        def costs_of(recipe: Path, num_steps: int) -> list[Cost]:
            names = [f"{recipe.stem}-{repetition}" for repetition in range(repetitions)]
            return [cost_of_run(recipe, Path(scratch), name, num_steps=num_steps) for name in names]

        rates = [_rate(Path(scratch), repetition) for repetition in range(repetitions)]
        costs = {recipe: costs_of(recipe, num_steps) for recipe, num_steps in REAL_RUNS.items()}
        of_sessions = costs_of(SESSIONS, SESSION_STEPS)
    driven = Result(
        "controller, rollouts driven with simulated workers",
        peer="",
        at_least=2000,
        aim=5000,
        unit="/s",
        ours=rates,
        theirs=[],
        settings={"group_size": 8, "completion_tokens": COMPLETION_TOKENS, "graders": NUM_GRADERS},
        note="Controller, store, sockets and processes are real; engine, trainer and four graders are not.",
    )
    shares = [_share(recipe, repeated) for recipe, repeated in costs.items()]
    record("controller", driven, *shares, _cost_of_calls(of_sessions))


def _share(recipe: Path, repeated: list["Cost"]) -> Result:
    per_second = statistics.median(cost.num_per_second for cost in repeated)
    milliseconds = statistics.median(cost.milliseconds for cost in repeated)
    return at_most(
        f"controller, CPU share of a real run of {recipe.stem}",
        5,
        " %",
        [cost.percent for cost in repeated],
        {"recipe": str(recipe.relative_to(ROOT)), "steps": REAL_RUNS[recipe]},
        note="CPU time of the controller's process, all threads, over wall clock; 100 % is one core. "
        f"{per_second:.3g} trajectories per second, {milliseconds:.2g} ms each. The cost of a trajectory hardly "
        "depends on the model.",
    )


def _cost_of_calls(repeated: list["Cost"]) -> Result:
    per_second = statistics.median(cost.calls_per_second for cost in repeated)
    return at_most(
        f"controller, CPU time for a call, sessions of {SESSIONS.stem}",
        0.5,
        " ms",
        [cost.milliseconds_per_call for cost in repeated],
        {"recipe": str(SESSIONS.relative_to(ROOT)), "steps": SESSION_STEPS, "start": SESSION_START},
        aim=0.25,
        note="CPU time of the controller's process, all threads, over the calls of the policy that were trained "
        f"on: {per_second:,.0f} per second. Episodes, rendering and tokenising are the agent worker's.",
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
    step_seconds: float
    """Wall clock from one step to the next."""
    calls_per_second: float
    """Calls of the policy that were trained on: one for a completion, several for a session."""

    @property
    def milliseconds_per_call(self) -> float:
        return 10 * self.percent / self.calls_per_second

    @property
    def milliseconds(self) -> float:
        """CPU milliseconds per trajectory."""
        return 10 * self.percent / self.num_per_second


def cost_of_run(
    recipe: Path, scratch: Path, name: str, *, num_steps: int, on_line: Callable[[str], None] = lambda line: None
) -> Cost:
    """CPU time of the controller's own process between the first and the last step, over the time between them.

    `on_line` is called with each line that the run prints.
    """
    overrides = ("--page.port", "0", "--train.num_steps", str(num_steps))
    command = train_command(recipe, scratch, name, *start_of(recipe), *QUIET, *overrides)
    clocks = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        process = psutil.Process(run.pid)
        assert run.stdout is not None
        for line in run.stdout:
            on_line(line)
            if re.search(r"  step \d+/", line):
                times = process.cpu_times()
                clocks.append((time.monotonic(), times.user + times.system))
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {run.returncode}")
    (begin, cpu_before), (end, cpu_after) = clocks[0], clocks[-1]
    with RunReader(scratch / name) as reader:
        steps = reader.steps()[1:]
    counts = [sum(step.staleness_counts.values()) for step in steps]
    num_calls = sum(count * step.metrics.get("num_calls", 1.0) for count, step in zip(counts, steps, strict=True))
    seconds = end - begin
    cost = Cost(
        percent=100 * (cpu_after - cpu_before) / seconds,
        num_per_second=sum(counts) / seconds,
        step_seconds=seconds / (len(clocks) - 1),
        calls_per_second=num_calls / seconds,
    )
    show(
        f"  {recipe.stem}: {cost.percent:.2f} % of {seconds:.1f} s, {cost.milliseconds:.2f} ms a trajectory, "
        f"{cost.milliseconds_per_call:.3f} ms a call"
    )
    return cost


def start_of(recipe: Path) -> list[str]:
    """Overrides of a recipe; makes the model that it begins with."""
    if recipe == EUCLID:
        return euclid_start()
    if recipe == SESSIONS:
        make_guessing_model()
        return [*SESSION_START]
    return []


def make_guessing_model() -> None:
    """As `make demo-agents` does."""
    directory = ROOT / "models/guessing"
    if not directory.exists():
        task = ("--task", "freerun.environments.guessing:prompts")
        command = [sys.executable, "-m", "freerun.cli.main", "model", "tiny", str(directory), *task]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
