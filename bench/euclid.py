"""End to end where decoding is latency-bound: Euclid to 199, a tiny model, derivations with a long tail.

Asynchronous (at most 4 versions of staleness) against our own synchronous loop at its best, and against one step
of overlap with whole batches. The models that the runs end with are evaluated on the same held-out problems: a
faster run that had learned less would not count.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from bench.end_to_end import ASYNCHRONOUS, SYNCHRONOUS, EndToEnd, Figures, held_out_accuracy
from bench.harness import ROOT, Result, record, show
from bench.runs import make_tiny_model, train

RECIPE = ROOT / "bench/recipes/euclid-199.toml"
MODEL = ROOT / "models/euclid-199"
WARM_MODEL = ROOT / "models/euclid-199-warm"
NUM_STEPS = 60
OVERLAP = ("--buffer.max_staleness", "1", "--buffer.whole_batches", "true")


def measure(turns: int) -> None:
    start = ["--model.path", str(warm_model()), "--warm_start.num_steps", "0"]
    with tempfile.TemporaryDirectory(prefix="freerun-euclid-") as scratch:
        runs = EndToEnd(RECIPE, Path(scratch), num_steps=NUM_STEPS, overrides=start)
        ours, ours_tried = runs.fastest(ASYNCHRONOUS)
        synchronous, synchronous_tried = runs.fastest(SYNCHRONOUS, "--buffer.max_staleness", "0")
        overlapping, overlapping_tried = runs.fastest(ASYNCHRONOUS, *OVERLAP)
        figures = runs.in_turns(
            {
                "asynchronous": ASYNCHRONOUS[ours],
                "synchronous": (*SYNCHRONOUS[synchronous], "--buffer.max_staleness", "0"),
                "one step of overlap": (*ASYNCHRONOUS[overlapping], *OVERLAP),
            },
            turns=turns,
        )
        accuracies = {side: _accuracies(figures[side]) for side in figures}
    show(f"held-out accuracy: {accuracies}")
    settings = {
        "recipe": str(RECIPE.relative_to(ROOT)),
        "steps": NUM_STEPS,
        "tried": {"asynchronous": ours_tried, "synchronous": synchronous_tried, "overlap": overlapping_tried},
        "held_out_accuracy": accuracies,
        "runs": {side: figures[side].details for side in figures},
    }
    note = "Held-out accuracy after the runs, mean over the turns: " + ", ".join(
        f"{side} {statistics.mean(values):.3f}" for side, values in accuracies.items()
    )
    claim = "end-to-end RL, Euclid to 199, tiny model, trained trajectories/s"
    speeds = {side: figures[side].trajectories_per_second for side in figures}
    record(
        "euclid",
        Result(
            claim,
            f"our synchronous loop at its best ({synchronous})",
            at_least=2.0,
            aim=2.77,
            unit="x",
            ours=speeds["asynchronous"],
            theirs=speeds["synchronous"],
            settings=settings,
            note=note,
        ),
        Result(
            claim,
            f"one step of overlap, whole batches ({overlapping})",
            at_least=1.3,
            aim=1.6,
            unit="x",
            ours=speeds["asynchronous"],
            theirs=speeds["one step of overlap"],
        ),
    )


def warm_model() -> Path:
    """Where every run begins: made once, in about ten minutes."""
    if not WARM_MODEL.exists():
        if not MODEL.exists():
            make_tiny_model(MODEL, task="euclid")
        with tempfile.TemporaryDirectory(prefix="freerun-warm-") as scratch:
            train(RECIPE, Path(scratch), "warm", "--train.num_steps", "0", "--eval.num_prompts", "1").close()
            shutil.copytree(Path(scratch, "warm/checkpoints/step-0/model"), WARM_MODEL)
    return WARM_MODEL


def _accuracies(figures: Figures) -> list[float]:
    return [held_out_accuracy(run, "--eval.num_prompts", "400", "--eval.num_samples", "1") for run in figures.runs]
