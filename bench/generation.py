"""Tokens generated per second, SmolLM2 in fp32 on both cores, groups of 8: the common part of the comparisons.

Lengths are forced, so all sides produce the same number of tokens. Each side is measured in its fastest setting:
the settings that come close to the best in a trial, on completions a quarter as long, all take part.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from bench.harness import Result, Side, alternately, show
from bench.models import smollm2

PROMPT_TOKENS, GROUP_SIZE = 60, 8
MAX_SEQUENCES = 64
CLOSE = 0.8
"""Relative to the fastest setting in the trial; slower ones are left out."""
VOCABULARY = range(1_000, 49_000)
"""Ordinary tokens, none of them special."""

Groups = list[dict[str, Any]]
Setting = Callable[[Groups, int], dict[str, Any]]
"""One setting of one side: groups and a seed in, figures out."""


def groups_of(lengths: list[int], seed: int = 0) -> Groups:
    """Completions of these lengths, each `GROUP_SIZE` of them with a random prompt."""
    rng = random.Random(seed)
    return [
        {"prompt": rng.choices(VOCABULARY, k=PROMPT_TOKENS), "lengths": lengths[begin : begin + GROUP_SIZE]}
        for begin in range(0, len(lengths), GROUP_SIZE)
    ]


def our_settings(sides: ExitStack) -> dict[str, Setting]:
    num_cores = len(os.sched_getaffinity(0))
    one = sides.enter_context(Side("engine.py", str(smollm2()), "1", str(MAX_SEQUENCES)))
    slots = str(MAX_SEQUENCES // num_cores)
    many = sides.enter_context(Side("engine.py", str(smollm2()), str(num_cores), slots))
    return {
        f"1 process, {num_cores} threads": lambda groups, seed: one.ask(
            groups=groups, num_threads=num_cores, seed=seed
        ),
        f"{num_cores} processes, 1 thread": lambda groups, seed: many.ask(groups=groups, num_threads=1, seed=seed),
    }


def together(sides: list[Side], **options: int) -> Setting:
    """Distribute the groups over processes; the last one to finish ends the measurement."""

    def ask(groups: Groups, seed: int) -> dict[str, Any]:
        shares = [groups[index :: len(sides)] for index in range(len(sides))]
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(sides)) as pool:
            figures = list(pool.map(lambda side, share: side.ask(groups=share, **options), sides, shares))
        return {"tokens": sum(each["tokens"] for each in figures), "seconds": time.perf_counter() - begin}

    return ask


def compare(
    claim: str,
    peer: str,
    bounds: tuple[float, float],
    groups: Groups,
    ours: dict[str, Setting],
    theirs: dict[str, Setting],
    repetitions: int,
    *,
    limit: str,
) -> Result:
    """Both sides alternately; `limit` says what limits our speed."""
    show(f"{claim}, against {peer}")
    ours_tried, theirs_tried = try_out(ours, groups), try_out(theirs, groups)
    our_names, their_names = close_to_fastest(ours_tried), close_to_fastest(theirs_tried)
    contenders = [*(ours[name] for name in our_names), *(theirs[name] for name in their_names)]
    seeds = iter(range(1, 1_000))
    figures = alternately(
        *(lambda setting=setting: speed(setting, groups, next(seeds)) for setting in contenders),
        repetitions=repetitions,
    )
    our_repetitions = dict(zip(our_names, figures[: len(our_names)], strict=True))
    their_repetitions = dict(zip(their_names, figures[len(our_names) :], strict=True))
    our_setting, their_setting = fastest(our_repetitions), fastest(their_repetitions)
    lengths = [length for group in groups for length in group["lengths"]]
    settings = {
        "ours": our_setting,
        "theirs": their_setting,
        "tried": {"ours": ours_tried, "theirs": theirs_tried},
        "repetitions": {"ours": our_repetitions, "theirs": their_repetitions},
        "mean_length": statistics.mean(lengths),
        "max_length": max(lengths),
    }
    note = f"Ours: {our_setting}. Theirs: {their_setting}. {limit}"
    figures_of_both = our_repetitions[our_setting], their_repetitions[their_setting]
    return Result(claim, peer, *bounds, "x", *figures_of_both, settings=settings, note=note)


def try_out(settings: dict[str, Setting], groups: Groups) -> dict[str, float]:
    """Tokens per second of each setting on completions a quarter as long."""
    for setting in settings.values():
        setting(shortened(groups, 16), 0)  # to warm it up
    speeds = {name: speed(setting, shortened(groups, 4), seed=0) for name, setting in settings.items()}
    show("  " + ", ".join(f"{name}: {figure:.4g}" for name, figure in speeds.items()))
    return speeds


def close_to_fastest(tried: dict[str, float]) -> list[str]:
    return [name for name, figure in tried.items() if figure >= CLOSE * max(tried.values())]


def fastest(repetitions: dict[str, list[float]]) -> str:
    """The setting with the highest median."""
    return max(repetitions, key=lambda name: statistics.median(repetitions[name]))


def shortened(groups: Groups, factor: int) -> Groups:
    return [{**group, "lengths": [-(-length // factor) for length in group["lengths"]]} for group in groups]


def speed(setting: Setting, groups: Groups, seed: int) -> float:
    """Tokens per second; raises if the side did not do the requested work."""
    figures = setting(groups, seed)
    expected = sum(sum(group["lengths"]) for group in groups)
    if figures["tokens"] != expected:
        raise SystemExit(f"asked for {expected} tokens, got {figures['tokens']}")
    return float(figures["tokens"] / figures["seconds"])
