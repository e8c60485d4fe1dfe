"""Freshness control on and off, in turns: what it costs in trained tokens, and how much staler data is without it.

Three workloads: the demo, where compute is the limit; Euclid to 199, a tiny model with a long tail of lengths; and
SmolLM2-135M with lengths to 256. Both sides have the same bound, seeds and prompts. The first steps are not
measured: the buffer fills, and the control needs some batches to see what lies ready.
"""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.end_to_end import QUIET
from bench.harness import ROOT, Result, record, show
from bench.models import smollm2
from bench.runs import EUCLID, euclid_start, train
from freerun.events.reader import RunReader

FIRST_STEPS = 15
"""Not measured."""
AT_LEAST = 0.98
AT_MOST = 0.5
SIDES = {"on": ("--buffer.keep_fresh", "true"), "off": ("--buffer.keep_fresh", "false")}


@dataclass(frozen=True)
class Workload:
    """A recipe, and how long it has to run to be measured."""

    name: str
    recipe: Path
    num_steps: int
    overrides: tuple[str, ...]
    max_repetitions: int = 5


def workloads() -> list[Workload]:
    model = ("--model.path", str(smollm2()))
    instructions = ("--sampling.max_completion_tokens", "256")
    return [
        Workload("the demo", ROOT / "recipes/times-tables.toml", 45, model),
        Workload("Euclid to 199, tiny model", EUCLID, 150, tuple(euclid_start())),
        Workload(
            "SmolLM2-135M, lengths to 256",
            ROOT / "bench/recipes/instructions.toml",
            FIRST_STEPS + 8,
            (*model, *instructions),
            max_repetitions=2,
        ),
    ]


def measure(repetitions: int) -> None:
    record("freshness", *(result for each in workloads() for result in compare(each, repetitions)))


def compare(workload: Workload, repetitions: int) -> tuple[Result, Result]:
    """The ratio of the speeds, and that of the mean staleness."""
    show(workload.name)
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="freerun-freshness-") as scratch:
        for repetition in range(min(repetitions, workload.max_repetitions)):
            for side in list(SIDES) if repetition % 2 == 0 else list(SIDES)[::-1]:
                figures[side].append(run(workload, side, Path(scratch), seed=repetition))

    def result(what: str, key: str, *, bound: float, lower_is_better: bool) -> Result:
        return Result(
            f"freshness control, {workload.name}, {what}",
            "the same run without it",
            bound,
            bound,
            unit="x",
            ours=[each[key] for each in figures["on"]],
            theirs=[each[key] for each in figures["off"]],
            lower_is_better=lower_is_better,
            settings={
                "recipe": str(workload.recipe.relative_to(ROOT)),
                "steps": workload.num_steps,
                "not measured": FIRST_STEPS,
                "runs": figures,
            },
            note=describe(figures) if lower_is_better else "",
        )

    return (
        result("trained tokens/s", "tokens_per_second", bound=AT_LEAST, lower_is_better=False),
        result("mean staleness", "mean_staleness", bound=AT_MOST, lower_is_better=True),
    )


def run(workload: Workload, side: str, scratch: Path, *, seed: int) -> dict[str, Any]:
    overrides = (
        *workload.overrides,
        *QUIET,
        "--train.num_steps",
        str(workload.num_steps),
        "--run.seed",
        str(seed),
    )
    name = f"{workload.recipe.stem}-{side}-{seed}"
    with train(workload.recipe, scratch, name, *overrides, *SIDES[side]) as reader:
        measured = figures_of(reader)
    show(
        f"  {side}: {measured['tokens_per_second']:.4g} trained tokens/s, mean staleness "
        f"{measured['mean_staleness']:.2f}, the trainer waited {measured['waited']:.1%}"
    )
    return measured


def figures_of(reader: RunReader) -> dict[str, Any]:
    """Of the steps after the first ones."""
    steps = reader.steps()
    begin, steps = steps[FIRST_STEPS - 1].seconds, steps[FIRST_STEPS:]
    seconds = steps[-1].seconds - begin
    counts = [(staleness, number) for step in steps for staleness, number in step.staleness_counts.items()]
    return {
        "tokens_per_second": sum(step.metrics["num_tokens"] for step in steps) / seconds,
        "trajectories_per_second": sum(number for _, number in counts) / seconds,
        "mean_staleness": sum(staleness * number for staleness, number in counts) / sum(n for _, n in counts),
        "max_staleness": max(staleness for staleness, _ in counts),
        "waited": sum(step.wait_seconds for step in steps) / seconds,
        "gate_closed": sum(step.metrics["gate_closed_seconds"] for step in steps) / seconds,
        "slot_occupancy": statistics.mean(step.metrics["slot_occupancy"] for step in steps),
        "batches_ahead": [step.metrics.get("batches_ahead") for step in steps],
    }


def describe(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Mean staleness and the trainer's waiting on both sides."""
    sides = []
    for side, runs in figures.items():
        means = [each["mean_staleness"] for each in runs]
        waited = statistics.mean(each["waited"] for each in runs)
        sides.append(
            f"{side} {statistics.mean(means):.2f} ({min(means):.2f} to {max(means):.2f}), the trainer waited "
            f"{waited:.0%}"
        )
    return f"Mean staleness with the control {'; '.join(sides)}."
