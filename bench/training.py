"""Training tokens per second on long-tailed lengths vs. padded Hugging Face training and AReaL's FSDPEngine.

Forward, backward, clipping and AdamW of the same loss on the same trajectories; the gradient norms must agree.
For all sides, the tokens of a batch are those of the prompts and completions of all trajectories. That freerun
computes a prompt once per group is part of what is measured.
"""

import json
from pathlib import Path
from typing import Any

from bench.environments import areal
from bench.harness import Result, Side, alternately, record, show
from bench.models import smollm2, tiny
from bench.trajectories import PROMPT_TOKENS, make_groups, num_tokens

Groups = list[dict[str, Any]]

NUM_GROUPS = {"SmolLM2-135M": 2, "tiny": 8}
GROUP_SIZE = 8
NUM_THREADS = 2
MICRO_BATCH_TOKENS = 2048
PADDED_SETTINGS = [(1, False), *((size, is_sorted) for size in (2, 4, 8, 16, 32) for is_sorted in (False, True))]
"""Sequences per padded micro-batch, and whether they are sorted by length; measured with its best setting."""

AREAL_NOTE = (
    "One sequence per micro-batch: on a CPU, AReaL's packed micro-batches are wrong, because with SDPA the packed "
    "sequences attend to each other."
)


def measure(repetitions: int) -> None:
    results = []
    for name, directory in {"SmolLM2-135M": str(smollm2()), "tiny": str(tiny())}.items():
        groups = _batch(name, directory)
        with Side("trainer.py", directory) as ours:
            with Side("padded.py", directory) as padded:
                results.append(_against_padded(name, groups, ours, padded, repetitions))
            with Side("areal_engine.py", directory, python=areal()) as engine:
                results.append(_against_areal(name, groups, ours, engine, repetitions))
    record("training", *results)


def _batch(name: str, directory: str) -> Groups:
    vocab_size = json.loads(Path(directory, "config.json").read_text())["vocab_size"]
    return make_groups(num_groups=NUM_GROUPS[name], group_size=GROUP_SIZE, vocab_size=vocab_size)


def _against_padded(name: str, groups: Groups, ours: Side, padded: Side, repetitions: int) -> Result:
    size, is_sorted = _best_setting(padded, groups)
    their_work = {"micro_batch_size": size, "is_sorted": is_sorted}
    our_figures, their_figures = _tokens_per_second(groups, ours, padded, their_work, repetitions)
    order = "sorted by length" if is_sorted else "in order"
    return Result(
        claim=f"training, long-tailed lengths, {name}, groups of {GROUP_SIZE}",
        peer="padded Hugging Face",
        at_least=1.7,
        aim=0.0,
        unit="x",
        ours=our_figures,
        theirs=their_figures,
        settings=_settings(groups) | their_work,
        note=f"Padded micro-batches of {size} sequences {order}, its best of {len(PADDED_SETTINGS)} settings. "
        f"{_positions_note(groups, size, is_sorted)}",
    )


def _positions_note(groups: Groups, size: int, is_sorted: bool) -> str:
    """How many positions each side computes, whose ratio limits the figure."""
    completions = [len(completion) for group in groups for completion in group["completions"]]
    lengths = sorted(completions) if is_sorted else completions
    batches = [lengths[begin : begin + size] for begin in range(0, len(lengths), size)]
    padded = sum(len(batch) * (PROMPT_TOKENS + max(batch)) for batch in batches)
    # The last token of a completion is predicted and predicts nothing.
    ours = sum(PROMPT_TOKENS + sum(len(c) - 1 for c in group["completions"]) for group in groups)
    return (
        f"It computes {padded:,} positions, {padded / ours:.2f}x ours (no padding, each group's prompt once). "
        f"Both compute the same layers for a position, so {padded / ours:.2f}x is the limit of what packing and "
        "sharing prompts can give; more or less is the speed of a position."
    )


def _best_setting(padded: Side, groups: Groups) -> tuple[int, bool]:
    padded.ask(num_threads=NUM_THREADS, groups=groups, micro_batch_size=4, is_sorted=True)
    seconds = {}
    num_trajectories = sum(len(group["completions"]) for group in groups)
    for size, is_sorted in PADDED_SETTINGS:
        if size > num_trajectories:
            continue
        answer = padded.ask(num_threads=NUM_THREADS, groups=groups, micro_batch_size=size, is_sorted=is_sorted)
        seconds[size, is_sorted] = answer["seconds"]
        show(f"  padded, {size} sequences, sorted {is_sorted}: {num_tokens(groups) / answer['seconds']:.4g}")
    return min(seconds, key=lambda setting: seconds[setting])


def _against_areal(name: str, groups: Groups, ours: Side, engine: Side, repetitions: int) -> Result:
    our_figures, their_figures = _tokens_per_second(groups, ours, engine, {}, repetitions)
    return Result(
        claim=f"training, long-tailed lengths, {name}, groups of {GROUP_SIZE}",
        peer="AReaL 1.0.4 FSDPEngine, one sequence per micro-batch",
        at_least=2.0,
        aim=0.0,
        unit="x",
        ours=our_figures,
        theirs=their_figures,
        settings=_settings(groups),
        note=AREAL_NOTE,
    )


def _tokens_per_second(
    groups: Groups, ours: Side, theirs: Side, their_work: dict[str, Any], repetitions: int
) -> tuple[list[float], list[float]]:
    norms: dict[Side, float] = {}

    def ask(side: Side, work: dict[str, Any]) -> float:
        answer = side.ask(num_threads=NUM_THREADS, groups=groups, **work)
        norms[side] = answer["grad_norm"]
        return num_tokens(groups) / float(answer["seconds"])

    our_work = {"micro_batch_tokens": MICRO_BATCH_TOKENS}
    our_figures, their_figures = alternately(
        lambda: ask(ours, our_work), lambda: ask(theirs, their_work), repetitions=repetitions
    )
    # The learning rate is too small to change any bit of a weight, so the number of steps does not matter.
    if abs(norms[ours] - norms[theirs]) > 1e-3 * norms[theirs]:
        raise SystemExit(
            f"gradient norms differ: {norms[ours]} against {norms[theirs]}; this is not the same work"
        )
    return our_figures, their_figures


def _settings(groups: Groups) -> dict[str, Any]:
    lengths = sorted(len(completion) for group in groups for completion in group["completions"])
    return {
        "num_threads": NUM_THREADS,
        "micro_batch_tokens": MICRO_BATCH_TOKENS,
        "num_tokens": num_tokens(groups),
        "num_groups": len(groups),
        "completion_lengths": lengths,
    }
