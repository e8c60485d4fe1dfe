"""Interruptible generation vs. draining: new weights immediately, or when all running sequences have finished.

Both sides are the same run from the same warm-started model with the same number of steps. They differ in
`engine.kv_on_load`, and the draining side uses its best number of slots: fewer finish sooner. The long-tailed
derivations of Euclid's algorithm are what it waits for (AReaL reports 12 to 17 % more tokens per second).
"""

import tempfile
from pathlib import Path

from bench.end_to_end import EndToEnd
from bench.harness import ROOT, Result, record
from bench.runs import EUCLID, euclid_start

NUM_STEPS = 60
INTERRUPTIBLE, WAITING = "recompute", "drain"
SLOTS = {f"{count} slots": ("--engine.num_slots", str(count)) for count in (120, 72, 48, 24)}
"""From five batches, the most that may be in flight, down to one."""


def measure(repetitions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="freerun-interrupts-") as scratch:
        runs = EndToEnd(EUCLID, Path(scratch), num_steps=NUM_STEPS, overrides=euclid_start())
        waiting, tried = runs.fastest(SLOTS, "--engine.kv_on_load", WAITING)
        figures = runs.alternately(
            {
                INTERRUPTIBLE: ("--engine.kv_on_load", INTERRUPTIBLE),
                WAITING: ("--engine.kv_on_load", WAITING, *SLOTS[waiting]),
            },
            repetitions=repetitions,
        )
    settings = {
        "recipe": str(EUCLID.relative_to(ROOT)),
        "steps": NUM_STEPS,
        "tried": tried,
        "runs": {side: figures[side].details for side in figures},
    }
    record(
        "interrupts",
        *(
            Result(
                claim=f"interruptible generation, {kind} tokens/s of a run",
                peer=f"waiting for running sequences at each update ({waiting})",
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
