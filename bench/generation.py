"""Tokens generated per second, SmolLM2 in fp32 on both cores: against vLLM, and against transformers.

Against vLLM: groups of 8, prompts of 60 tokens and 128 new ones. Against transformers: single completions of 64
prompts, whose lengths have a long tail (`long_tailed_lengths`): padded, `generate` runs a batch to its longest.
Lengths are forced, so all sides produce the same number of tokens. Each side is measured in the setting that is
its fastest on this work, found just before the turns.
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

from bench.environments import vllm
from bench.harness import ROOT, Result, Side, in_turns, record, show

MODEL = str(ROOT / "models/smollm2")
PROMPT_TOKENS, NEW_TOKENS, GROUP_SIZE = 60, 128, 8
NUM_LONG_TAILED = 64
MAX_LENGTH = 256
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


def groups_of(lengths: list[int], num_samples: int, seed: int = 0) -> Groups:
    """One group for each length, with a random prompt of its own."""
    rng = random.Random(seed)
    return [
        {"prompt": rng.choices(VOCABULARY, k=PROMPT_TOKENS), "num_samples": num_samples, "max_tokens": length}
        for length in lengths
    ]


def measure(turns: int) -> None:
    num_cores = len(os.sched_getaffinity(0))
    results = []
    with ExitStack() as sides:
        ours = our_settings(sides, num_cores)
        with ExitStack() as peers:
            theirs = vllm_settings(peers)
            for num_sequences in (32, 64):
                groups = groups_of([NEW_TOKENS] * (num_sequences // GROUP_SIZE), GROUP_SIZE)
                claim = f"generation, tokens/s, {num_sequences} sequences of {PROMPT_TOKENS} + {NEW_TOKENS} tokens"
                results.append(compare(claim, "vLLM CPU 0.32.0", (1.3, 1.5), groups, ours, theirs, turns))
        with Side("generate.py", MODEL) as peer:
            groups = groups_of(long_tailed_lengths(), 1)
            claim = f"generation, tokens/s, {NUM_LONG_TAILED} sequences of long-tailed lengths"
            padded, continuous = transformers_settings(peer)
            results.append(compare(claim, "transformers generate", (2.0, 0.0), groups, ours, padded, turns))
            name = "transformers continuous batching"
            results.append(compare(claim, name, (5.0, 0.0), groups, ours, continuous, min(turns, 3)))
    record("generation", *results)


def our_settings(sides: ExitStack, num_cores: int) -> dict[str, Setting]:
    one = sides.enter_context(Side("engine.py", MODEL, "1", str(NUM_LONG_TAILED)))
    many = sides.enter_context(Side("engine.py", MODEL, str(num_cores), str(NUM_LONG_TAILED // num_cores)))
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
            Side("vllm_offline.py", MODEL, str(NUM_LONG_TAILED), python=vllm(), cores=cores)
        )

    cores = sorted(os.sched_getaffinity(0))
    return {
        f"1 process, {len(cores)} threads": together([start(*cores)]),
        f"{len(cores)} processes, 1 thread": together([start(core) for core in cores]),
    }


def together(sides: list[Side]) -> Setting:
    """Deal the groups among processes; the last one to finish ends the measurement."""

    def ask(groups: Groups, seed: int) -> dict[str, Any]:
        shares = [groups[index :: len(sides)] for index in range(len(sides))]
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(sides)) as pool:
            figures = list(pool.map(lambda side, share: side.ask(groups=share), sides, shares))
        return {"tokens": sum(each["tokens"] for each in figures), "seconds": time.perf_counter() - begin}

    return ask


def transformers_settings(peer: Side) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Padded batches, and continuous batching with short pages: each page a sequence touches is read whole."""

    def padded(batch_size: int) -> Setting:
        return lambda groups, seed: peer.ask(groups=groups, batch_size=batch_size, seed=seed)

    def continuous(page_tokens: int) -> Setting:
        return lambda groups, seed: peer.ask(groups=groups, page_tokens=page_tokens, seed=seed)

    return (
        {f"batches of {size}": padded(size) for size in (16, 32, 64)},
        {f"pages of {size}": continuous(size) for size in (32, 256)},
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
    our_setting, their_setting = fastest(ours, groups), fastest(theirs, groups)
    seeds = iter(range(1, 1_000))
    our_figures, their_figures = in_turns(
        lambda: speed(ours[our_setting], groups, next(seeds)),
        lambda: speed(theirs[their_setting], groups, next(seeds)),
        turns=turns,
    )
    lengths = [group["max_tokens"] for group in groups]
    settings = {
        "ours": our_setting,
        "theirs": their_setting,
        "mean_length": statistics.mean(lengths),
        "max_length": max(lengths),
    }
    return Result(claim, peer, *bounds, "x", our_figures, their_figures, settings=settings)


def fastest(settings: dict[str, Setting], groups: Groups) -> str:
    """The name of the setting that is fastest on this work; a single one is not tried."""
    if len(settings) == 1:
        return next(iter(settings))
    first_tokens = [{**group, "max_tokens": min(8, group["max_tokens"])} for group in groups]
    for setting in settings.values():
        setting(first_tokens, 0)  # to warm it up
    speeds = {name: speed(setting, groups, seed=0) for name, setting in settings.items()}
    show("  " + ", ".join(f"{name}: {figure:.4g}" for name, figure in speeds.items()))
    return max(speeds, key=lambda name: speeds[name])


def speed(setting: Setting, groups: Groups, seed: int) -> float:
    """Tokens per second; raises if the side did other work than it was asked to."""
    figures = setting(groups, seed)
    expected = sum(group["num_samples"] * group["max_tokens"] for group in groups)
    if figures["tokens"] != expected:
        raise SystemExit(f"asked for {expected} tokens, got {figures['tokens']}")
    return float(figures["tokens"] / figures["seconds"])
