"""Interruptible generation against waiting: new weights at once, or when all running sequences are finished.

    python -m bench interrupts
    python -m bench.interrupts --recipe bench/recipes/euclid-199.toml --model MODEL --steps 30

Both sides are the same run, from the same warm-started model, with as many steps; all that differs is
`engine.kv_on_load`. The long-tailed derivations of Euclid's algorithm are what is waited for (AReaL reports
12 to 17 % more tokens a second).
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Result, in_turns, record
from bench.runs import train, warm_started
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader

RECIPE = Path("recipes/euclid.toml")
NUM_STEPS = 12
INTERRUPTIBLE, WAITING = "recompute", "drain"


@dataclass(frozen=True)
class Speed:
    """Tokens per second from the moment version 0 was in the engine to the last step."""

    generated: float
    trained: float


def measure(
    turns: int, recipe: Path = RECIPE, model: Path | None = None, num_steps: int = NUM_STEPS, *overrides: str
) -> None:
    """`model` is one that was warm-started before, to save the time."""
    with tempfile.TemporaryDirectory(prefix="freerun-interrupts-") as scratch:
        runs = Path(scratch)
        start = ["--model.path", str(model or warm_started(recipe, runs)), "--warm_start.num_steps", "0"]
        start += ["--train.num_steps", str(num_steps), "--checkpoint.every_steps", "100000"]
        start += ["--eval.every_steps", "100000", "--eval.num_prompts", "1", *overrides]
        numbers = itertools.count()
        speeds: dict[str, list[Speed]] = {INTERRUPTIBLE: [], WAITING: []}

        def generated(kv_on_load: str) -> float:
            # Both sides of a turn sample with the same random numbers.
            number = next(numbers)
            name, seed = f"{kv_on_load}-{number}", str(number // 2)
            speed = _speed(
                train(recipe, runs, name, *start, "--engine.kv_on_load", kv_on_load, "--run.seed", seed)
            )
            speeds[kv_on_load].append(speed)
            return speed.generated

        in_turns(lambda: generated(INTERRUPTIBLE), lambda: generated(WAITING), turns=turns)
    settings = {"recipe": str(recipe), "steps": num_steps, "overrides": list(overrides)}
    ours, theirs = speeds[INTERRUPTIBLE][1:], speeds[WAITING][1:]  # the first turn warms up
    record(
        "interrupts",
        _result("generated", [s.generated for s in ours], [s.generated for s in theirs], settings),
        _result("trained", [s.trained for s in ours], [s.trained for s in theirs], settings),
    )


def _result(kind: str, ours: list[float], theirs: list[float], settings: dict[str, Any]) -> Result:
    return Result(
        claim=f"interruptible generation, {kind} tokens/s of a run",
        peer="waiting for running sequences at each update",
        at_least=1.15,
        aim=0,
        unit="x",
        ours=ours,
        theirs=theirs,
        settings=settings,
    )


def _speed(reader: RunReader) -> Speed:
    steps = reader.steps()
    state = RunState()
    for event in reader.events():
        if event.seconds <= steps[-1].seconds:  # not the last evaluation
            state(event)
    seconds = steps[-1].seconds - min(event.seconds for event in reader.events("weights_loaded"))
    num_trained = sum(step.metrics["num_tokens"] for step in steps)
    return Speed(state.engine_total("num_tokens") / seconds, num_trained / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--model", type=Path, help="a warm-started model; without it the warm start comes first")
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--turns", type=int, default=5)
    args, overrides = parser.parse_known_args()
    measure(args.turns, args.recipe, args.model, args.steps, *overrides)


if __name__ == "__main__":
    main()
