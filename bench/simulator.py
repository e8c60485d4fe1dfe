"""How fast the simulator is, and how long `freerun plan` takes.

    python -m bench.simulator [REPETITIONS]      # two minutes for each

Rollouts per second of the 1.5B setting of the AReaL paper at full scale: 96 engines, 8,192 trajectories a step,
with graders that answer at once and with grader processes behind the real pool. `freerun plan` runs as a user
starts it, for 64 to 512 GPUs; the slowest counts. `bench/seeds.py` measures scenarios with faults.
"""

import subprocess
import sys
import time
from dataclasses import replace

from bench.harness import ROOT, Result, at_most, record, show
from bench.paper import SET_A, asynchronous
from bench.paper_world import setup_of
from freerun.config.reward import RewardConfig
from freerun.simulation.run import Setup, simulate

NUM_STEPS = 1
"""After the eight in which the pipeline fills, which count too."""
NUM_GRADERS = 64
GRADE_SECONDS = 0.1
PLANNED_GPUS = (64, 128, 256, 512)
RECIPE = "examples/eight-nodes.toml"
OPTIONS = ["--kind", "h100", "--model", "qwen2.5-7b", "--lengths", "1200", "--prompt-tokens", "300"]
REPETITIONS = 3


def measure(repetitions: int) -> None:
    inline = setup_of(asynchronous("1.5b", 128), SET_A, 1, num_steps=NUM_STEPS)
    reward = RewardConfig(grader="exact", num_workers=NUM_GRADERS)
    pooled = replace(inline, recipe=replace(inline.recipe, reward=reward), grade_seconds=GRADE_SECONDS)
    simulate(setup_of(asynchronous("1.5b", 128), SET_A, 8, num_steps=NUM_STEPS))
    rates: list[list[float]] = [[], []]
    plans = []
    for repetition in range(repetitions):
        for found, setup in zip(rates, (inline, pooled), strict=True):
            found.append(rollouts_per_second(setup))
        seconds = {num_gpus: plan_seconds(num_gpus) for num_gpus in PLANNED_GPUS}
        plans.append(max(seconds.values()))
        planned = ", ".join(f"{number} GPUs {value:.1f} s" for number, value in seconds.items())
        speeds = " and ".join(f"{found[-1]:,.0f}" for found in rates)
        show(f"  repetition {repetition + 1}: {speeds} rollouts/s; freerun plan: {planned}")
    settings = {"gpus": "96 + 32", "model": "qwen2.5-1.5b", "batch": 8192, "steps": inline.recipe.train.num_steps}
    graders = settings | {"graders": NUM_GRADERS, "grade_seconds": GRADE_SECONDS}
    record(
        "simulator",
        _rate("simulator, rollouts with graders that answer at once", 15_000, rates[0], settings),
        _rate("simulator, rollouts with the grader pool", 6_000, rates[1], graders),
        at_most(
            "`freerun plan`, the slowest of 64 to 512 GPUs",
            30,
            " s",
            plans,
            {"recipe": RECIPE, "options": OPTIONS, "gpus": PLANNED_GPUS},
        ),
    )


def _rate(claim: str, at_least: float, rates: list[float], settings: dict[str, object]) -> Result:
    note = "One core; gate, buffer, controller and pools are the real ones."
    return Result(claim, "", at_least, 0, unit="/s", ours=rates, theirs=[], settings=settings, note=note)


def rollouts_per_second(setup: Setup) -> float:
    """Of real time."""
    began = time.perf_counter()
    outcome = simulate(setup)
    return outcome.num_rollouts / (time.perf_counter() - began)


def plan_seconds(num_gpus: int) -> float:
    command = [sys.executable, "-m", "freerun", "plan", RECIPE, "--gpus", str(num_gpus), *OPTIONS]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - began


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS)
