"""End to end where compute is the limit: SmolLM2-135M on two cores, long-tailed lengths to 256 tokens.

Asynchronous (at most 4 versions of staleness) vs. our best synchronous configuration, both in their steady state
(`sides/rl.py`). Synchronous with one engine of one thread is not tried: a core would idle while it generates. The
work per token is the same on both sides, so the gain is idle time: the tail of each batch, and the core that
waits.

Two rows: trained trajectories per second, which is what a run is waited for, and trained completion tokens per
second, as in the comparison with TRL. The first steps of an asynchronous run, which are not measured, get the
short completions, so its measured ones are longer than the synchronous run's, and its ratio in tokens is larger.
"""

import statistics
from contextlib import ExitStack
from typing import Any

from bench.end_to_end import BOTH_CORES
from bench.harness import ROOT, Result, Side, alternately, record, show
from bench.models import smollm2
from bench.trl import trained_tokens_per_second

RECIPE = ROOT / "bench/recipes/instructions.toml"
NUM_STEPS = 5
TRIAL_STEPS = 2
MAX_REPETITIONS = 3
"""A run takes minutes."""


def measure(repetitions: int) -> None:
    overrides = ("--model.path", str(smollm2()), "--sampling.max_completion_tokens", "256")
    figures: dict[str, list[dict[str, Any]]] = {"asynchronous": [], "synchronous": []}
    seeds = iter(range(1_000))

    def speed(side: Side, name: str) -> float:
        figures[name].append(side.ask(num_steps=NUM_STEPS, seed=next(seeds)))
        return trained_tokens_per_second(figures[name][-1])

    with ExitStack() as sides:
        synchronous = {
            name: sides.enter_context(Side("rl.py", str(RECIPE), *overrides, "--buffer.max_staleness", "0", *way))
            for name, way in BOTH_CORES.items()
        }
        ours = sides.enter_context(Side("rl.py", str(RECIPE), *overrides))
        tried = {}
        for name, side in synchronous.items():
            tried[name] = trained_tokens_per_second(side.ask(num_steps=TRIAL_STEPS))
            show(f"  synchronous, {name}: {tried[name]:.4g} tokens/s")
        best = max(tried, key=lambda name: tried[name])
        our_speeds, their_speeds = alternately(
            lambda: speed(ours, "asynchronous"),
            lambda: speed(synchronous[best], "synchronous"),
            repetitions=min(repetitions, MAX_REPETITIONS),
            warms_up=False,
        )
    settings = {
        "recipe": str(RECIPE.relative_to(ROOT)),
        "steps": NUM_STEPS,
        "synchronous_tried": tried,
        "runs": figures,
    }

    def result(what: str, ours: list[float], theirs: list[float], *, at_least: float, aim: float) -> Result:
        return Result(
            f"end-to-end RL, SmolLM2-135M, lengths to 256, trained {what}/s",
            f"our synchronous loop at its best ({best})",
            at_least=at_least,
            aim=aim,
            unit="x",
            ours=ours,
            theirs=theirs,
            settings=settings if what == "trajectories" else {},
            note=describe(figures["asynchronous"], figures["synchronous"]) if what == "trajectories" else "",
        )

    trajectories = {side: [trained_trajectories_per_second(run) for run in figures[side]] for side in figures}
    record(
        "smollm2",
        result("trajectories", trajectories["asynchronous"], trajectories["synchronous"], at_least=1.3, aim=1.3),
        result("tokens", our_speeds, their_speeds, at_least=1.15, aim=1.3),
    )


def trained_trajectories_per_second(figures: dict[str, Any]) -> float:
    return float(len(figures["lengths"]) / figures["seconds"])


def describe(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Completion lengths and busy shares."""

    def mean_length(runs: list[dict[str, Any]]) -> float:
        return statistics.mean(float(length) for run in runs for length in run["lengths"])

    def busy(runs: list[dict[str, Any]]) -> float:
        return statistics.mean(float(run["trainer_busy"]) for run in runs)

    return (
        f"Completions had {mean_length(ours):.0f} tokens on average, synchronous ones {mean_length(theirs):.0f}. "
        f"The trainer was busy {busy(ours):.0%} of the time, the synchronous one {busy(theirs):.0%}."
    )
