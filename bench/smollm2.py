"""End to end where computing is the limit: SmolLM2-135M on two cores, lengths with a long tail to 256 tokens.

Asynchronous (at most 4 versions of staleness) against our own synchronous loop at its best. Neither side can do
less work for a token, so what is won is what stands still: the tail of each batch, and the core that waits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.end_to_end import ASYNCHRONOUS, SYNCHRONOUS, EndToEnd
from bench.harness import ROOT, Result, record
from bench.models import smollm2

RECIPE = ROOT / "bench/recipes/instructions.toml"
NUM_STEPS = 6
MAX_TURNS = 3
"""A run takes minutes."""


def measure(turns: int) -> None:
    overrides = ("--model.path", str(smollm2()), "--sampling.max_completion_tokens", "256")
    with tempfile.TemporaryDirectory(prefix="freerun-smollm2-") as scratch:
        runs = EndToEnd(RECIPE, Path(scratch), num_steps=NUM_STEPS, overrides=overrides)
        ours, ours_tried = runs.fastest(ASYNCHRONOUS)
        theirs, theirs_tried = runs.fastest(SYNCHRONOUS, "--buffer.max_staleness", "0")
        figures = runs.in_turns(
            {
                "asynchronous": ASYNCHRONOUS[ours],
                "synchronous": (*SYNCHRONOUS[theirs], "--buffer.max_staleness", "0"),
            },
            turns=min(turns, MAX_TURNS),
        )
    record(
        "smollm2",
        Result(
            "end-to-end RL, SmolLM2-135M, lengths to 256, trained trajectories/s",
            f"our synchronous loop at its best ({theirs})",
            at_least=1.15,
            aim=1.3,
            unit="x",
            ours=figures["asynchronous"].trajectories_per_second,
            theirs=figures["synchronous"].trajectories_per_second,
            settings={
                "recipe": str(RECIPE.relative_to(ROOT)),
                "steps": NUM_STEPS,
                "ours": ours,
                "tried": {"asynchronous": ours_tried, "synchronous": theirs_tried},
                "runs": {side: figures[side].details for side in figures},
            },
            note=f"Ours: {ours}.",
        ),
    )
