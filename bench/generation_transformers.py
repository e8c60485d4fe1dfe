"""Generation vs. transformers, long-tailed lengths: padded, `generate` runs a batch to its longest completion."""

import os
import random
from contextlib import ExitStack

from bench.environments import TRANSFORMERS, trl
from bench.generation import MAX_SEQUENCES, Setting, compare, groups_of, our_settings, together
from bench.harness import Side, record
from bench.models import smollm2

MAX_LENGTH = 256
MAX_SLOW_REPETITIONS = 2
"""Of continuous batching, which takes minutes."""
LIMIT = (
    "At the end only the longest completions are left, and a step with few rows takes as long as reading the "
    "weights, on every side: 0.54 GB per token."
)


def measure(repetitions: int) -> None:
    groups = groups_of(long_tailed_lengths())
    claim = f"generation, tokens/s, {MAX_SEQUENCES} sequences of long-tailed lengths"
    name = TRANSFORMERS.replace("==", " ")
    with ExitStack() as sides:
        ours, (padded, continuous) = our_settings(sides), transformers_settings(sides)
        slow_repetitions = min(repetitions, MAX_SLOW_REPETITIONS)
        record(
            "generation_transformers",
            compare(claim, f"{name}, generate", (2.0, 0.0), groups, ours, padded, repetitions, limit=LIMIT),
            compare(
                claim,
                f"{name}, continuous batching",
                (4.0, 0.0),
                groups,
                ours,
                continuous,
                slow_repetitions,
                limit=LIMIT,
            ),
        )


def long_tailed_lengths(seed: int = 0) -> list[int]:
    """New tokens of each completion: log-normal, cut at `MAX_LENGTH`; mean 60, median 44."""
    rng = random.Random(seed)
    lengths = [round(rng.lognormvariate(3.75, 0.9)) for _ in range(MAX_SEQUENCES)]
    return [min(max(length, 1), MAX_LENGTH) for length in lengths]


def transformers_settings(peers: ExitStack) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Padded batches, and continuous batching with short pages: a page is always read as a whole."""

    def start(*cores: int) -> Side:
        return peers.enter_context(Side("generate.py", str(smollm2()), python=trl(), cores=cores))

    cores = sorted(os.sched_getaffinity(0))
    one, many = [start(*cores)], [start(core) for core in cores]
    named = {f"1 process, {len(cores)} threads": one, f"{len(cores)} processes, 1 thread": many}
    return (
        {
            f"{name}, batches of {size}": together(sides, batch_size=size)
            for name, sides in named.items()
            for size in (MAX_SEQUENCES // 2, MAX_SEQUENCES // len(sides))
        },
        {
            f"{name}, pages of {size}": together(sides, page_tokens=size)
            for name, sides in named.items()
            for size in (32, 256)
        },
    )
