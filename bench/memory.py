"""The peak memory of an RL step on SmolLM2 vs. TRL: all processes of a run, as in `trl.py`.

Memory does not depend on what else the machine does, so these rows can be measured at any time. TRL uses the
micro-batch that was its fastest when the speed was measured (docs/results/speed/trl.json).
"""

import json
from itertools import count

from bench.harness import RESULTS, Result, Side, alternately, record, show
from bench.trl import PEER, SHORT, TAILED, Work, our_side, their_side

OUR_STEPS = 3
MAX_REPETITIONS = 2
NOTE = (
    "Weights, gradients and moments are 2.2 GB on both sides. To generate while training, freerun also has two "
    "buffers of published weights (0.5 GB each), two packed copies in the engine (0.5 GB each: one decodes while "
    "the next version is packed) and its cache, which exist beside the activations of training; in TRL cache and "
    "activations alternate."
)


def measure(repetitions: int) -> None:
    record("memory", *(compare(work, min(repetitions, MAX_REPETITIONS)) for work in (SHORT, TAILED)))


def compare(work: Work, repetitions: int) -> Result:
    show(work.name)
    micro_batch = fastest_micro_batch(work)
    seeds = count()

    def our_peak(ours: Side) -> float:
        return float(ours.ask(num_steps=OUR_STEPS, seed=next(seeds))["peak_bytes"])

    with their_side(work, micro_batch) as theirs, our_side(work) as ours:
        theirs.ask(num_steps=1)  # its moments are made at the end of its first step
        our_peaks, their_peaks = alternately(
            lambda: our_peak(ours),
            lambda: float(theirs.ask(num_steps=1)["peak_bytes"]),
            repetitions=repetitions,
            warms_up=False,
        )
    return Result(
        f"{work.name}, peak memory of trainer and engine",
        PEER,
        at_least=1.0,
        aim=0.8,
        unit="x",
        ours=our_peaks,
        theirs=their_peaks,
        lower_is_better=True,
        settings={"their_micro_batch": micro_batch, "our_steps": OUR_STEPS},
        note=NOTE,
    )


def fastest_micro_batch(work: Work) -> int:
    """Completions that TRL computes at once."""
    for result in json.loads((RESULTS / "trl.json").read_text())["results"]:
        if result["claim"].startswith(work.name):
            tried: dict[str, float] = result["settings"]["their_micro_batches"]
            return int(max(tried, key=lambda size: tried[size]))
    raise SystemExit(f'{RESULTS / "trl.json"} has no row "{work.name}"; measure it first: python -m bench trl')
