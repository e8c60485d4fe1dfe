"""End to end where decoding is latency-bound: Euclid to 199, a tiny model, derivations with a long tail.

Asynchronous (at most 4 versions of staleness) vs. our best synchronous configuration, and vs. one step of overlap
with whole batches. The resulting models are evaluated on the same held-out prompts, and the table reports the
accuracies.
"""

import math
import statistics
import tempfile
from pathlib import Path

from bench.end_to_end import ASYNCHRONOUS, SYNCHRONOUS, EndToEnd, Figures, held_out_accuracy
from bench.harness import ROOT, Result, record, show
from bench.runs import EUCLID, euclid_start
from freerun.events.accuracy import percent

NUM_STEPS = 150
NUM_HELD_OUT = 400
OVERLAP = ("--buffer.max_staleness", "1", "--buffer.whole_batches", "true")


def measure(repetitions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="freerun-euclid-") as scratch:
        runs = EndToEnd(EUCLID, Path(scratch), num_steps=NUM_STEPS, overrides=euclid_start())
        ours, ours_tried = runs.fastest(ASYNCHRONOUS)
        synchronous, synchronous_tried = runs.fastest(SYNCHRONOUS, "--buffer.max_staleness", "0")
        overlapping, overlapping_tried = runs.fastest(ASYNCHRONOUS, *OVERLAP)
        figures = runs.alternately(
            {
                "asynchronous": ASYNCHRONOUS[ours],
                "synchronous": (*SYNCHRONOUS[synchronous], "--buffer.max_staleness", "0"),
                "one step of overlap": (*ASYNCHRONOUS[overlapping], *OVERLAP),
            },
            repetitions=repetitions,
        )
        accuracies = {side: _accuracies(figures[side]) for side in figures}
    show(f"held-out accuracy: {accuracies}")
    settings = {
        "recipe": str(EUCLID.relative_to(ROOT)),
        "ours": ours,
        "steps": NUM_STEPS,
        "tried": {"asynchronous": ours_tried, "synchronous": synchronous_tried, "overlap": overlapping_tried},
        "held_out_accuracy": accuracies,
        "runs": {side: figures[side].details for side in figures},
    }
    note = f"Ours: {ours}. Held-out accuracy after the runs, with standard errors: " + ", ".join(
        f"{side} {percent(statistics.mean(values))} ± {percent(_standard_error(values))}"
        for side, values in accuracies.items()
    )
    note += ". Busy share: " + ", ".join(f"{side} {_busy(figures[side])}" for side in figures)
    speeds = {side: figures[side].trajectories_per_second for side in figures}

    def result(side: str, peer: str, *, at_least: float, aim: float, note: str = "") -> Result:
        return Result(
            "end-to-end RL, Euclid to 199, tiny model, trained trajectories/s",
            peer,
            at_least,
            aim,
            unit="x",
            ours=speeds["asynchronous"],
            theirs=speeds[side],
            settings=settings,
            note=note,
        )

    synchronous_peer = f"our synchronous loop at its best ({synchronous})"
    overlapping_peer = f"one step of overlap, whole batches ({overlapping})"
    record(
        "euclid",
        result("synchronous", synchronous_peer, at_least=2.0, aim=2.77, note=note),
        result("one step of overlap", overlapping_peer, at_least=1.3, aim=2.0),
    )


def _accuracies(figures: Figures) -> list[float]:
    return [
        held_out_accuracy(run, "--eval.num_prompts", str(NUM_HELD_OUT), "--eval.num_samples", "1")
        for run in figures.runs
    ]


def _busy(figures: Figures) -> str:
    """Busy share of each engine and of the trainer."""
    engines = statistics.mean(share for run in figures.details for share in run["engines_busy"].values())
    trainer = statistics.mean(run["trainer_busy"] for run in figures.details)
    return f"engine {engines:.0%} and trainer {trainer:.0%}"


def _standard_error(accuracies: list[float]) -> float:
    """Standard error of the mean over prompts; the variation between seeds may be larger."""
    mean = statistics.mean(accuracies)
    return math.sqrt(mean * (1 - mean) / (NUM_HELD_OUT * len(accuracies)))
