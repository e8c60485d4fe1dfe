"""Micro-batches packed to a capacity (AReaL, Algorithm 1) against a fixed count of them, on the same trainer.

The fixed count is the smallest for which none exceeds the same capacity, when sequences are dealt in order into
micro-batches of equally many: the memory of both sides is the same. Neighbours share their prompt on both sides.
"""

from __future__ import annotations

import json

from bench.harness import ROOT, Result, Side, in_turns, record
from bench.trajectories import make_groups, num_tokens

MODELS = {"SmolLM2-135M": ("models/smollm2", 4), "tiny": ("models/euclid", 16)}
"""Directories and numbers of groups."""
GROUP_SIZE = 8
NUM_THREADS = 2
CAPACITY = 1024
"""Tokens of a micro-batch; less than twice the longest trajectory."""


def measure(turns: int) -> None:
    record("micro_batches", *(_measure(name, *model, turns) for name, model in MODELS.items()))


def _measure(name: str, directory: str, num_groups: int, turns: int) -> Result:
    vocab_size = json.loads((ROOT / directory / "config.json").read_text())["vocab_size"]
    groups = make_groups(num_groups=num_groups, group_size=GROUP_SIZE, vocab_size=vocab_size)
    count = fixed_count([len(g["prompt"]) + len(c) for g in groups for c in g["completions"]], CAPACITY)

    with Side("trainer.py", directory) as side:

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
        settings={"capacity": CAPACITY, "num_threads": NUM_THREADS, "num_trajectories": num_groups * GROUP_SIZE},
    )


def fixed_count(lengths: list[int], capacity: int) -> int:
    """The fewest micro-batches of equally many sequences, in order, of which none exceeds the capacity."""
    for count in range(1, len(lengths) + 1):
        size = -(-len(lengths) // count)
        if max(sum(lengths[begin : begin + size]) for begin in range(0, len(lengths), size)) <= capacity:
            return count
    raise SystemExit(f"a sequence of {max(lengths)} tokens does not fit {capacity}")
