"""Generation vs. vLLM's CPU build: completions of 128 tokens, 32 and 64 at a time."""

import os
from contextlib import ExitStack

from bench.environments import vllm
from bench.generation import MAX_SEQUENCES, PROMPT_TOKENS, Setting, compare, groups_of, our_settings, together
from bench.harness import Side, record
from bench.models import smollm2

NEW_TOKENS = 128
LIMIT = (
    "Most of our step is matrix products near the processor's peak "
    "([decision 16](../decisions/0016-engine-speed.md)); vLLM needs the same ones."
)


def measure(repetitions: int) -> None:
    results = []
    with ExitStack() as sides:
        ours, theirs = our_settings(sides), vllm_settings(sides)
        for num_sequences in (32, 64):
            groups = groups_of([NEW_TOKENS] * num_sequences)
            claim = f"generation, tokens/s, {num_sequences} sequences of {PROMPT_TOKENS} + {NEW_TOKENS} tokens"
            results.append(
                compare(claim, "vLLM CPU 0.32.0", (1.3, 1.5), groups, ours, theirs, repetitions, limit=LIMIT)
            )
    record("generation_vllm", *results)


def vllm_settings(peers: ExitStack) -> dict[str, Setting]:
    """One process on all cores, or one on each."""

    def start(*cores: int) -> Side:
        return peers.enter_context(
            Side("vllm_offline.py", str(smollm2()), str(MAX_SEQUENCES), python=vllm(), cores=cores)
        )

    cores = sorted(os.sched_getaffinity(0))
    return {
        f"1 process, {len(cores)} threads": together([start(*cores)]),
        f"{len(cores)} processes, 1 thread": together([start(core) for core in cores]),
    }
