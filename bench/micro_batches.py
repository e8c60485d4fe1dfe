"""Micro-batches packed to a capacity (AReaL, Algorithm 1) against a fixed count of them, on the same trainer.

The fixed count is the smallest for which none exceeds the same capacity, when sequences are dealt in order into
micro-batches of equally many: the memory of both sides is the same. Neighbours share their prompt on both sides,
and count it once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Result, Side, in_turns, record
from bench.models import smollm2, tiny
from bench.trajectories import make_groups, num_tokens
from freerun.train.batch import pack_sequences

NUM_GROUPS = {"SmolLM2-135M": 4, "tiny": 16}
GROUP_SIZE = 8
NUM_THREADS = 2
CAPACITY = 1024
"""Tokens of a micro-batch; less than twice the longest trajectory."""


def measure(turns: int) -> None:
    models = {"SmolLM2-135M": smollm2(), "tiny": tiny()}
    record("micro_batches", *(_measure(name, directory, turns) for name, directory in models.items()))


def _measure(name: str, directory: Path, turns: int) -> Result:
    vocab_size = json.loads((directory / "config.json").read_text())["vocab_size"]
    groups = make_groups(num_groups=NUM_GROUPS[name], group_size=GROUP_SIZE, vocab_size=vocab_size)
    count = fixed_count(groups, CAPACITY)

    with Side("trainer.py", str(directory)) as side:

        def tokens_per_second(num_micro_batches: int) -> float:
            answer = side.ask(
                num_threads=NUM_THREADS,
                groups=groups,
                micro_batch_tokens=CAPACITY,
                num_micro_batches=num_micro_batches,
            )
            return num_tokens(groups) / float(answer["seconds"])

        packed, fixed = in_turns(lambda: tokens_per_second(0), lambda: tokens_per_second(count), turns=turns)
    return Result(
        claim=f"micro-batches by Algorithm 1, {name}",
        peer=f"{count} micro-batches of equally many sequences",
        at_least=1.2,
        aim=1.3,
        unit="x",
        ours=packed,
        theirs=fixed,
        settings={"capacity": CAPACITY, "num_threads": NUM_THREADS, "num_trajectories": len(groups) * GROUP_SIZE},
    )


def fixed_count(groups: list[dict[str, Any]], capacity: int) -> int:
    """The fewest micro-batches of equally many sequences, in order, of which none exceeds the capacity."""
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
