"""Interruptible generation against waiting: new weights at once, or when all running sequences are finished.

Both sides are the same run, from the same warm-started model, with as many steps; all that differs is
`engine.kv_on_load`. The long-tailed derivations of Euclid's algorithm are what is waited for (AReaL reports
12 to 17 % more tokens a second).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.end_to_end import EndToEnd
from bench.harness import ROOT, Result, record
from bench.runs import EUCLID, euclid_start

NUM_STEPS = 60
INTERRUPTIBLE, WAITING = "recompute", "drain"


def measure(turns: int) -> None:
    with tempfile.TemporaryDirectory(prefix="freerun-interrupts-") as scratch:
        runs = EndToEnd(EUCLID, Path(scratch), num_steps=NUM_STEPS, overrides=euclid_start())
        figures = runs.in_turns(
            {side: ("--engine.kv_on_load", side) for side in (INTERRUPTIBLE, WAITING)}, turns=turns
        )
    settings = {
        "recipe": str(EUCLID.relative_to(ROOT)),
        "steps": NUM_STEPS,
        "runs": {side: figures[side].details for side in figures},
    }
    record(
        "interrupts",
        *(
            Result(
                claim=f"interruptible generation, {kind} tokens/s of a run",
                peer="waiting for running sequences at each update",
                at_least=1.15,
                aim=0,
                unit="x",
                ours=[details[key] for details in figures[INTERRUPTIBLE].details],
                theirs=[details[key] for details in figures[WAITING].details],
                settings=settings,
            )
            for kind, key in (("generated", "generated_tokens_per_second"), ("trained", "tokens_per_second"))
        ),
    )
