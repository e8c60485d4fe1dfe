"""How much of the time engine and trainer work: asynchronous against `max_staleness = 0`, side by side.

    python -m bench.overlap                       # the Euclid recipe, 3 repeats, about 10 minutes

Both sides start from the same warm-started model and train on the same number of trajectories; they take
turns, so that a slow spell of the machine hits both. Everything is read from the runs' own stores. The
synchronous side has the same placement (one core generates, the other trains), so this measures what
overlapping the two wins, not the best synchronous program for two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
from pathlib import Path

from bench.runs import train
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader

SIDES = {"asynchronous": 4, "synchronous": 0}


def measure(reader: RunReader) -> dict[str, float]:
    """Shares of the training phase: from the moment version 0 was in the engine to the last step."""
    steps = reader.steps()
    state = RunState()
    for event in reader.events():
        if event.seconds <= steps[-1].seconds:  # not the last evaluation, which has the machine to itself
            state(event)
    begin = min(event.seconds for event in reader.events("weights_loaded"))
    seconds = steps[-1].seconds - begin
    num_tokens = sum(step.metrics["num_tokens"] for step in steps)
    (engine,) = state.engines.values()
    return {
        "seconds": seconds,
        "tokens_per_second": num_tokens / seconds,
        "engine_generates": engine.total("busy_seconds") / seconds,
        "trainer_trains": sum(step.step_seconds for step in steps) / seconds,
        "held_out": reader.evals()[-1].accuracy,
        "max_staleness": float(max(max(step.staleness_counts) for step in steps)),
        "interrupts": float(engine.total("num_interrupts")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("recipes/euclid.toml"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a warm-started model; without it the warm start comes first")
    parser.add_argument("--output", type=Path, default=Path("docs/results/overlap.json"))
    args = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="freerun-overlap-"))
    rows: list[dict[str, object]] = []
    try:
        if args.model is None:
            train(args.recipe, scratch, "warm", "--train.num_steps", "1")
        model = args.model or scratch / "warm/checkpoints/step-1/model"
        start = ["--model.path", str(model), "--warm_start.num_steps", "0"]
        start += ["--train.num_steps", str(args.steps), "--checkpoint.every_steps", "100000"]
        start += ["--eval.every_steps", "100000"]
        for repeat in range(args.repeats):
            for side, eta in SIDES.items():
                overrides = [*start, "--buffer.max_staleness", str(eta), "--run.seed", str(repeat)]
                figures = measure(train(args.recipe, scratch, f"{side}-{repeat}", *overrides))
                rows.append({"side": side, "repeat": repeat, **figures})
                print("  " + "  ".join(f"{key} {value:.3g}" for key, value in figures.items()), flush=True)
    finally:
        shutil.rmtree(scratch)
    report(rows, args.output, args.steps)


def report(rows: list[dict[str, object]], output: Path, num_steps: int) -> None:
    print(f"\n{'':14}" + "".join(f"{key:>20}" for key in ("engine generates", "trainer trains", "tokens/s")))
    for side in SIDES:
        cells = []
        for key in ("engine_generates", "trainer_trains", "tokens_per_second"):
            values = [float(str(row[key])) for row in rows if row["side"] == side]
            scale, unit = (1.0, "") if key == "tokens_per_second" else (100.0, " %")
            low, high = min(values) * scale, max(values) * scale
            cells.append(f"{statistics.median(values) * scale:.0f}{unit} ({low:.0f}-{high:.0f})")
        print(f"{side:14}" + "".join(f"{cell:>20}" for cell in cells))
    speeds = {side: [float(str(r["tokens_per_second"])) for r in rows if r["side"] == side] for side in SIDES}
    ratios = [a / s for a, s in zip(speeds["asynchronous"], speeds["synchronous"], strict=True)]
    print(f"ratio of trained tokens/s: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    machine = {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"steps": num_steps, "machine": machine, "runs": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
