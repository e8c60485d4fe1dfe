"""A whole RL step on SmolLM2, 8 prompts x 4 completions, vs. TRL: trained completion tokens/s.

Our side is `freerun train` with its defaults, asynchronous, in its steady state (`sides/rl.py`). Theirs is
GRPOTrainer, which alternates generation and training on both cores (`sides/grpo_trainer.py`). Same prompts,
reward and batch, one update per step. Completions end with the end token or at 64 (or 256) tokens; their lengths
have a long tail. Only tokens that the policy sampled and the step trained on count; padding does not.
"""

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environments import trl
from bench.harness import ROOT, Result, Side, alternately, record, show
from bench.models import smollm2
from freerun.config.load import load_recipe
from freerun.data.tokenizer import Tokenizer
from freerun.session.build import make_source

RECIPE = str(ROOT / "bench/recipes/instructions.toml")
PROMPTS_PER_STEP, GROUP_SIZE = 8, 4
PEER = "TRL 1.16.0 GRPOTrainer"
MICRO_BATCHES = (4, 8, 16)
"""Completions that TRL computes at once; each workload uses the fastest."""


@dataclass(frozen=True)
class Work:
    """One comparison; steps are per repetition."""

    max_tokens: int
    our_steps: int
    max_repetitions: int
    at_least: float
    aim: float

    @property
    def name(self) -> str:
        return f"RL step, {PROMPTS_PER_STEP} x {GROUP_SIZE} completions of at most {self.max_tokens} tokens"


# TRL takes a minute or more for a step of these, and has one per repetition; ours show the steady state.
SHORT = Work(max_tokens=64, our_steps=5, max_repetitions=3, at_least=2.5, aim=3.0)
TAILED = Work(max_tokens=256, our_steps=5, max_repetitions=2, at_least=3.0, aim=5.0)


@dataclass
class Repetitions:
    """Figures of one side apart from its speed, one entry per repetition."""

    lengths: list[int] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, figures: dict[str, Any]) -> float:
        """Record the figures and return the speed; memory is measured by `memory.py`."""
        self.lengths += figures.pop("lengths")
        figures.pop("peak_bytes", None)
        self.figures.append(figures)
        return trained_tokens_per_second(figures)

    def describe(self) -> dict[str, Any]:
        """Lengths in tokens, and each repetition."""
        return {
            "num_completions": len(self.lengths),
            "mean_length": statistics.mean(self.lengths),
            "median_length": statistics.median(self.lengths),
            "p90_length": statistics.quantiles(self.lengths, n=10)[-1],
            "max_length": max(self.lengths),
            "repetitions": self.figures,
        }


def measure(repetitions: int) -> None:
    record("trl", *(compare(work, repetitions) for work in (SHORT, TAILED)))


def fastest_side(work: Work) -> tuple[Side, dict[int, float]]:
    """TRL with its best micro-batch for this work, warmed up, and the tokens/s of all in their first step."""
    tried: dict[int, float] = {}
    best: Side | None = None
    for micro_batch in MICRO_BATCHES:
        newest = their_side(work, micro_batch)
        tried[micro_batch] = trained_tokens_per_second(newest.ask(num_steps=1))
        show(f"  TRL, micro-batches of {micro_batch}: {tried[micro_batch]:.4g} tokens/s")
        is_best = tried[micro_batch] == max(tried.values())
        best, slower = (newest, best) if is_best else (best, newest)
        if slower is not None:
            slower.close()
    assert best is not None
    return best, tried


def compare(work: Work, repetitions: int) -> Result:
    show(work.name)
    ours, theirs = Repetitions(), Repetitions()
    seeds = iter(range(1_000))
    their, tried = fastest_side(work)
    with their, our_side(work) as our:
        our_speeds, their_speeds = alternately(
            lambda: ours.add(our.ask(num_steps=work.our_steps, seed=next(seeds))),
            lambda: theirs.add(their.ask(num_steps=1)),
            repetitions=min(repetitions, work.max_repetitions),
            warms_up=False,
        )
    settings = {
        "ours": ours.describe(),
        "theirs": theirs.describe(),
        "their_micro_batches": tried,
    }
    return Result(
        f"{work.name}, trained tokens/s",
        PEER,
        work.at_least,
        work.aim,
        unit="x",
        ours=our_speeds,
        theirs=their_speeds,
        settings=settings,
    )


def our_side(work: Work) -> Side:
    return Side("rl.py", RECIPE, "--sampling.max_completion_tokens", str(work.max_tokens))


def their_side(work: Work, micro_batch: int) -> Side:
    sizes = (work.max_tokens, PROMPTS_PER_STEP, GROUP_SIZE, micro_batch)
    return Side("grpo_trainer.py", str(smollm2()), *map(str, sizes), *training_prompts(), python=trl())


def training_prompts() -> list[str]:
    """The prompts of our run, as the model reads them."""
    tokenizer = Tokenizer.load(smollm2())
    return [prompt.text for prompt in make_source(load_recipe(Path(RECIPE), []), tokenizer).training()]


def trained_tokens_per_second(figures: dict[str, Any]) -> float:
    return float(figures["tokens"] / figures["seconds"])
