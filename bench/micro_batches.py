"""Micro-batches packed to a capacity (AReaL, Algorithm 1) vs. a fixed number of them, on the same trainer.

Both sides have the same memory: no micro-batch exceeds the capacity. The fixed number deals sequences in order
into micro-batches of equal count. It is set before a run begins, so it is the smallest that fits each of
`NUM_BATCHES` batches of the same distribution. The smallest number for the measured batch alone is also measured
and given in the note. Neighbours share their prompt on all sides and count it once.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Result, Side, alternately, record
from bench.models import smollm2, tiny
from bench.trajectories import make_groups, num_tokens
from freerun.trainer.batch import pack_sequences

NUM_GROUPS = {"SmolLM2-135M": 4, "tiny": 16}
GROUP_SIZE = 8
NUM_THREADS = 2
CAPACITY = 1024
"""Tokens per micro-batch; less than twice the longest trajectory."""
NUM_BATCHES = 100
"""Of a short run."""


def measure(repetitions: int) -> None:
    models = {"SmolLM2-135M": smollm2(), "tiny": tiny()}
    record("micro_batches", *(_measure(name, directory, repetitions) for name, directory in models.items()))


def _measure(name: str, directory: Path, repetitions: int) -> Result:
    vocab_size = json.loads((directory / "config.json").read_text())["vocab_size"]
    run = [
        make_groups(num_groups=NUM_GROUPS[name], group_size=GROUP_SIZE, vocab_size=vocab_size, seed=seed)
        for seed in range(NUM_BATCHES)
    ]
    counts = [fixed_count(batch, CAPACITY) for batch in run]
    batch, count_of_run, count_of_batch = run[0], max(counts), counts[0]

    with Side("trainer.py", str(directory)) as side:

        def tokens_per_second(num_micro_batches: int) -> float:
            answer = side.ask(
                num_threads=NUM_THREADS,
                groups=batch,
                micro_batch_tokens=CAPACITY,
                num_micro_batches=num_micro_batches,
            )
            return num_tokens(batch) / float(answer["seconds"])

        packed, fixed, fitted = alternately(
            lambda: tokens_per_second(0),
            lambda: tokens_per_second(count_of_run),
            lambda: tokens_per_second(count_of_batch),
            repetitions=repetitions,
        )
    against_fitted = statistics.median(ours / theirs for ours, theirs in zip(packed, fitted, strict=True))
    return Result(
        claim=f"micro-batches by Algorithm 1, {name}",
        peer=f"{count_of_run} micro-batches, the fewest with which {NUM_BATCHES} batches fit",
        at_least=1.2,
        aim=1.3,
        unit="x",
        ours=packed,
        theirs=fixed,
        settings={
            "capacity": CAPACITY,
            "num_threads": NUM_THREADS,
            "num_trajectories": len(batch) * GROUP_SIZE,
            "count_of_each_batch": counts,
            "tokens_per_second_with_the_count_of_the_batch": fitted,
        },
        note=f"vs. {count_of_batch} micro-batches, the smallest number for the measured batch itself, which a run "
        f"cannot know in advance: {against_fitted:.2f}x.",
    )


def fixed_count(groups: list[dict[str, Any]], capacity: int) -> int:
    """The smallest number of equal micro-batches, in order, none of which exceeds the capacity."""
    sequences = [
        (np.array(group["prompt"]), np.array(completion))
        for group in groups
        for completion in group["completions"]
    ]
    for count in range(1, len(sequences) + 1):
        size = -(-len(sequences) // count)
        packs = [pack_sequences(sequences[begin : begin + size]) for begin in range(0, len(sequences), size)]
        if max(len(pack.token_ids_T) for pack in packs) <= capacity:
            return count
    raise SystemExit(f"a sequence does not fit {capacity} tokens")
