"""Tokens generated per second, SmolLM2 in fp32 on both cores, groups of 8: against vLLM, and against transformers.

Against vLLM all completions have 128 tokens, against transformers their lengths have a long tail
(`long_tailed_lengths`): padded, `generate` runs a batch to its longest. Lengths are forced, so all sides produce
the same number of tokens. Each side is measured in the setting that is its fastest on this work, found just before
the turns on completions a quarter as long.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from bench.environments import TRANSFORMERS, trl, vllm
from bench.harness import Result, Side, in_turns, record, show
from bench.models import smollm2

PROMPT_TOKENS, NEW_TOKENS, GROUP_SIZE = 60, 128, 8
NUM_LONG_TAILED = 64
MAX_LENGTH = 256
MAX_SLOW_TURNS = 2
"""Of continuous batching, which takes minutes."""
VOCABULARY = range(1_000, 49_000)
"""Ordinary tokens, none of them special."""

Groups = list[dict[str, Any]]
Setting = Callable[[Groups, int], dict[str, Any]]
"""One way to ask one side: groups and a seed in, figures out."""


def long_tailed_lengths(seed: int = 0) -> list[int]:
    """New tokens of each completion: log-normal, cut at `MAX_LENGTH`; mean 60, median 44."""
    rng = random.Random(seed)
    lengths = [round(rng.lognormvariate(3.75, 0.9)) for _ in range(NUM_LONG_TAILED)]
    return [min(max(length, 1), MAX_LENGTH) for length in lengths]


def groups_of(lengths: list[int], seed: int = 0) -> Groups:
    """Completions of these lengths, each `GROUP_SIZE` of them with a random prompt."""
    rng = random.Random(seed)
    return [
        {"prompt": rng.choices(VOCABULARY, k=PROMPT_TOKENS), "lengths": lengths[begin : begin + GROUP_SIZE]}
        for begin in range(0, len(lengths), GROUP_SIZE)
    ]


def measure(turns: int) -> None:
    num_cores = len(os.sched_getaffinity(0))
    results = []
    with ExitStack() as sides:
        ours = our_settings(sides, num_cores)
        with ExitStack() as peers:
            theirs = vllm_settings(peers)
            for num_sequences in (32, 64):
                groups = groups_of([NEW_TOKENS] * num_sequences)
                claim = f"generation, tokens/s, {num_sequences} sequences of {PROMPT_TOKENS} + {NEW_TOKENS} tokens"
                results.append(compare(claim, "vLLM CPU 0.32.0", (1.3, 1.5), groups, ours, theirs, turns))
        with ExitStack() as peers:
            groups = groups_of(long_tailed_lengths())
            claim = f"generation, tokens/s, {NUM_LONG_TAILED} sequences of long-tailed lengths"
            padded, continuous = transformers_settings(peers)
            name = TRANSFORMERS.replace("==", " ")
            results.append(compare(claim, f"{name}, generate", (2.0, 0.0), groups, ours, padded, turns))
            name += ", continuous batching"
            results.append(compare(claim, name, (5.0, 0.0), groups, ours, continuous, min(turns, MAX_SLOW_TURNS)))
    record("generation", *results)


def our_settings(sides: ExitStack, num_cores: int) -> dict[str, Setting]:
    one = sides.enter_context(Side("engine.py", str(smollm2()), "1", str(NUM_LONG_TAILED)))
    slots = str(NUM_LONG_TAILED // num_cores)
    many = sides.enter_context(Side("engine.py", str(smollm2()), str(num_cores), slots))
    return {
        f"1 process, {num_cores} threads": lambda groups, seed: one.ask(
            groups=groups, num_threads=num_cores, seed=seed
        ),
        f"{num_cores} processes, 1 thread": lambda groups, seed: many.ask(groups=groups, num_threads=1, seed=seed),
    }


def vllm_settings(peers: ExitStack) -> dict[str, Setting]:
    """One process on all cores, or one on each."""

    def start(*cores: int) -> Side:
        return peers.enter_context(
            Side("vllm_offline.py", str(smollm2()), str(NUM_LONG_TAILED), python=vllm(), cores=cores)
        )

    cores = sorted(os.sched_getaffinity(0))
    return {
        f"1 process, {len(cores)} threads": together([start(*cores)]),
        f"{len(cores)} processes, 1 thread": together([start(core) for core in cores]),
    }


def together(sides: list[Side], **options: int) -> Setting:
    """Deal the groups among processes; the last one to finish ends the measurement."""

    def ask(groups: Groups, seed: int) -> dict[str, Any]:
        shares = [groups[index :: len(sides)] for index in range(len(sides))]
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(sides)) as pool:
            figures = list(pool.map(lambda side, share: side.ask(groups=share, **options), sides, shares))
        return {"tokens": sum(each["tokens"] for each in figures), "seconds": time.perf_counter() - begin}

    return ask


def transformers_settings(peers: ExitStack) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Padded batches, and continuous batching with short pages: each page a sequence touches is read whole."""

    def start(*cores: int) -> Side:
        return peers.enter_context(Side("generate.py", str(smollm2()), python=trl(), cores=cores))

    cores = sorted(os.sched_getaffinity(0))
    one, many = [start(*cores)], [start(core) for core in cores]
    named = {f"1 process, {len(cores)} threads": one, f"{len(cores)} processes, 1 thread": many}
    return (
        {
            f"{name}, batches of {size}": together(sides, batch_size=size)
            for name, sides in named.items()
            for size in (NUM_LONG_TAILED // 2, NUM_LONG_TAILED // len(sides))
        },
        {
            f"{name}, pages of {size}": together(sides, page_tokens=size)
            for name, sides in named.items()
            for size in (32, 256)
        },
    )


def compare(
    claim: str,
    peer: str,
    bounds: tuple[float, float],
    groups: Groups,
    ours: dict[str, Setting],
    theirs: dict[str, Setting],
    turns: int,
) -> Result:
    show(f"{claim}, against {peer}")
    ours_tried, theirs_tried = try_out(ours, groups), try_out(theirs, groups)
    our_setting, their_setting = fastest(ours_tried), fastest(theirs_tried)
    seeds = iter(range(1, 1_000))
    our_figures, their_figures = in_turns(
        lambda: speed(ours[our_setting], groups, next(seeds)),
        lambda: speed(theirs[their_setting], groups, next(seeds)),
        turns=turns,
    )
    lengths = [length for group in groups for length in group["lengths"]]
    settings = {
        "ours": our_setting,
        "theirs": their_setting,
        "tried": {"ours": ours_tried, "theirs": theirs_tried},
        "mean_length": statistics.mean(lengths),
        "max_length": max(lengths),
    }
    note = f"Ours: {our_setting}. Theirs: {their_setting}."
    return Result(claim, peer, *bounds, "x", our_figures, their_figures, settings=settings, note=note)


def try_out(settings: dict[str, Setting], groups: Groups) -> dict[str, float]:
    """Tokens per second of each setting on completions a quarter as long."""
    for setting in settings.values():
        setting(shortened(groups, 16), 0)  # to warm it up
    speeds = {name: speed(setting, shortened(groups, 4), seed=0) for name, setting in settings.items()}
    show("  " + ", ".join(f"{name}: {figure:.4g}" for name, figure in speeds.items()))
    return speeds


def fastest(tried: dict[str, float]) -> str:
    return max(tried, key=lambda name: tried[name])


def shortened(groups: Groups, factor: int) -> Groups:
    return [{**group, "lengths": [-(-length // factor) for length in group["lengths"]]} for group in groups]


def speed(setting: Setting, groups: Groups, seed: int) -> float:
    """Tokens per second; raises if the side did other work than it was asked to."""
    figures = setting(groups, seed)
    expected = sum(sum(group["lengths"]) for group in groups)
    if figures["tokens"] != expected:
        raise SystemExit(f"asked for {expected} tokens, got {figures['tokens']}")
    return float(figures["tokens"] / figures["seconds"])
