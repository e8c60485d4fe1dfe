"""The demo recipe on every backend, one after the other: does each reach the accuracy of the embedded engine?

    .venv-backends/bin/python -m bench.backends                     # all of them, about 25 minutes
    .venv-backends/bin/python -m bench.backends --only vllm ray     # some

Held-out accuracy, maximum staleness and interrupts are read from the stores of the runs. This does not measure
speed: two ranks and an engine share two cores here, and vLLM takes half a minute or more to start.
"""

import argparse
import json
import time
from pathlib import Path

from bench.harness import machine
from bench.runs import train
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader

BACKENDS: dict[str, tuple[str, ...]] = {
    "embedded": (),
    "vllm": ("--engine.backend", "vllm"),
    "2 ranks": ("--train.num_ranks", "2"),
    "ray": ("--runtime.backend", "ray"),
}


def measure(reader: RunReader) -> dict[str, float]:
    steps, evals = reader.steps(), reader.evals()
    state = RunState()
    for event in reader.events():
        state(event)
    ordinals = reader.trained_ordinals()
    return {
        "first": evals[0].accuracy,
        "final": evals[-1].accuracy,
        "max_staleness": float(max(max(step.staleness_counts) for step in steps)),
        "interrupts": float(sum(engine.total("num_interrupts") for engine in state.engines.values())),
        "prompts": float(len(ordinals)),
        "trained_twice": float(len(ordinals) - len(set(ordinals))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("recipes/times-tables.toml"))
    parser.add_argument("--only", nargs="+", choices=list(BACKENDS), default=list(BACKENDS))
    parser.add_argument("--runs", type=Path, default=Path("runs/backends"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/backends.json"))
    args = parser.parse_args()
    rows = []
    for backend in args.only:
        name = f"{backend.replace(' ', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
        figures = measure(train(args.recipe, args.runs, name, *BACKENDS[backend]))
        rows.append({"backend": backend, **figures})
        print("  " + "  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(
        json.dumps({"recipe": str(args.recipe), "machine": machine(), "runs": rows}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
