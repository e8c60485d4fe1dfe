"""A whole RL step on SmolLM2, 8 prompts x 4 completions, against TRL: trained completion tokens/s, and memory.

Ours is `freerun train` with its defaults, asynchronous, measured in its steady state (`sides/rl.py`); theirs is
GRPOTrainer, generating and training in turns on both cores (`sides/grpo_trainer.py`). Same prompts, reward and
batch, one update a step. Completions end where the model ends them, or at 64 tokens, or at 256, to which their
lengths have a long tail. A token is one that the policy sampled and the step trained on; padding does not count.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from bench.environments import trl
from bench.harness import ROOT, Result, Side, in_turns, record, show

MODEL = str(ROOT / "models/smollm2")
RECIPE = str(ROOT / "bench/recipes/instructions.toml")
PROMPTS_PER_STEP, GROUP_SIZE = 8, 4
OUR_STEPS, THEIR_STEPS = 5, 2
"""Of one turn. Theirs are slow, and all of them are measured; ours must be enough for a steady state."""
MAX_TURNS = 3
PEER = "TRL 1.16.0 GRPOTrainer"


@dataclass
class Record:
    """What the turns of one side have shown beside their speed."""

    lengths: list[int] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    more: list[dict[str, Any]] = field(default_factory=list)

    def add(self, figures: dict[str, Any]) -> float:
        """Keep them, and return the speed."""
        self.lengths += figures.pop("lengths")
        self.peaks.append(figures.pop("peak_bytes"))
        self.more.append(figures)
        return float(figures["tokens"] / figures["seconds"])


def measure(turns: int) -> None:
    turns = min(turns, MAX_TURNS)
    short = run(64, "8", "padded", turns)
    tailed = run(256, "8", "padded", turns)
    record("trl", *short, tailed[0])


def run(max_tokens: int, micro_batch: str, generation: str, turns: int) -> tuple[Result, Result]:
    """Speed and memory with completions of at most `max_tokens`."""
    show(f"completions of at most {max_tokens} tokens")
    our_record, their_record = Record(), Record()
    arguments = (MODEL, str(max_tokens), str(PROMPTS_PER_STEP), str(GROUP_SIZE), micro_batch, generation)
    seeds = iter(range(1_000))
    with (
        Side("rl.py", RECIPE, "--sampling.max_completion_tokens", str(max_tokens)) as ours,
        Side("grpo_trainer.py", *arguments, python=trl()) as theirs,
    ):
        speeds = in_turns(
            lambda: our_record.add(ours.ask(num_steps=OUR_STEPS, seed=next(seeds))),
            lambda: their_record.add(theirs.ask(num_steps=THEIR_STEPS)),
            turns=turns,
        )
    settings = {
        "micro_batch": int(micro_batch),
        "generation": generation,
        "our_lengths": describe(our_record.lengths),
        "their_lengths": describe(their_record.lengths),
        "our_turns": our_record.more,
        "their_turns": their_record.more,
    }
    what = f"RL step, {PROMPTS_PER_STEP} x {GROUP_SIZE} completions of at most {max_tokens} tokens"
    bounds = (2.5, 3.0) if max_tokens == 64 else (3.0, 5.0)
    speed = Result(f"{what}, trained tokens/s", PEER, *bounds, "x", *speeds, settings=settings)
    memory = Result(
        f"{what}, peak memory of trainer and engine",
        PEER,
        0.6,
        0.0,
        "x",
        our_record.peaks[1:],
        their_record.peaks[1:],
        lower_is_better=True,
        settings=settings,
    )
    return speed, memory


def describe(lengths: list[int]) -> dict[str, float]:
    """Of completions, in tokens."""
    deciles = statistics.quantiles(lengths, n=10)
    return {
        "num": len(lengths),
        "mean": statistics.mean(lengths),
        "median": statistics.median(lengths),
        "p90": deciles[-1],
        "max": max(lengths),
    }
