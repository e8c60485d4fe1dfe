"""Sessions of several turns vs. single completions of equal token counts: trained tokens per second of whole runs.

    four calls of 32 tokens, three short turns of a user between them ─┐
    one completion of 128 tokens, the user's words in the prompt      ─┴─► as many given and sampled tokens

Models without an end token make all lengths equal. No tool and no environment is waited for, and the same grader
judges both sides: what differs is the calls, and the agent worker that makes them. A call costs about as much CPU
time with any model, so the tiny model, a hundred times cheaper a token than SmolLM2, shows the worst case.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.end_to_end import QUIET
from bench.harness import ROOT, Result, alternately, record, show
from bench.models import TINY_SIZES, smollm2
from bench.runs import train
from bench.sides.several_turns import ALPHABET, NUM_TURNS, TOKENS_PER_TURN
from freerun.events.reader import RunReader
from freerun.model.tiny import make_tiny

RECIPE = ROOT / "bench/recipes/several-turns.toml"
AT_LEAST, AIM = 0.90, 0.95
SESSION_TOKENS = NUM_TURNS * TOKENS_PER_TURN
SIDES = {
    "sessions": (),
    "completions": (
        *("--rollout.episode", "", "--data.settings", f"num_said={NUM_TURNS - 1}"),
        *("--sampling.max_completion_tokens", str(SESSION_TOKENS)),
    ),
}


@dataclass(frozen=True)
class Workload:
    """A model, and how long a run of it has to be."""

    name: str
    make_model: Callable[[Path], None]
    num_steps: int
    first_steps: int
    """Not measured: the buffer fills."""
    overrides: tuple[str, ...] = ()
    max_repetitions: int = 5


def workloads() -> list[Workload]:
    # SmolLM2 takes some 10 s for the 1,024 sampled tokens of such a step.
    small_batches = ("--train.prompts_per_step", "2", "--sampling.group_size", "4", "--engine.num_slots", "16")
    return [
        Workload("tiny model", make_tiny_model, num_steps=40, first_steps=10),
        Workload("SmolLM2-135M", copy_smollm2, 10, 4, small_batches, max_repetitions=2),
    ]


def measure(repetitions: int) -> None:
    record("multi_turn", *(compare(each, min(repetitions, each.max_repetitions)) for each in workloads()))


def compare(workload: Workload, repetitions: int) -> Result:
    show(workload.name)
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="freerun-multi-turn-") as scratch:
        model = Path(scratch) / "model"
        workload.make_model(model)
        forget_end_token(model)

        def rate(side: str) -> float:
            figures[side].append(run(workload, side, Path(scratch), seed=len(figures[side])))
            return figures[side][-1]["tokens_per_second"]

        ours, theirs = alternately(
            *(partial(rate, side) for side in SIDES), repetitions=repetitions, warms_up=False
        )
    return Result(
        f"sessions of {NUM_TURNS} turns of {TOKENS_PER_TURN} tokens, {workload.name}, trained tokens/s",
        f"single completions of {SESSION_TOKENS} tokens",
        AT_LEAST,
        AIM,
        "x",
        ours,
        theirs,
        settings={
            "recipe": str(RECIPE.relative_to(ROOT)),
            "steps": workload.num_steps,
            "not measured": workload.first_steps,
            "overrides": workload.overrides,
            "runs": figures,
        },
        note="The same tokens given, sampled and trained on both sides, and the same grader; no tools.",
    )


def make_tiny_model(directory: Path) -> None:
    make_tiny(directory, alphabet=ALPHABET, **TINY_SIZES)


def copy_smollm2(directory: Path) -> None:
    """Without its chat template: the turns are plain text, as those of the tiny model."""
    shutil.copytree(smollm2(), directory, ignore=shutil.ignore_patterns("chat_template.jinja"))


def forget_end_token(model: Path) -> None:
    """Its completions have the length that is asked for."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings: dict[str, Any] = json.loads((model / name).read_text())
        kept = {key: value for key, value in settings.items() if key not in ("eos_token", "eos_token_id")}
        (model / name).write_text(json.dumps(kept, indent=2) + "\n")


def run(workload: Workload, side: str, scratch: Path, *, seed: int) -> dict[str, float]:
    steps = ("--train.num_steps", str(workload.num_steps), "--run.seed", str(seed))
    overrides = ("--model.path", str(scratch / "model"), *QUIET, *steps, *workload.overrides, *SIDES[side])
    with train(RECIPE, scratch, f"{side}-{seed}", *overrides) as reader:
        num_turns = NUM_TURNS if side == "sessions" else 1
        measured = figures_of(reader, num_turns=num_turns, first_steps=workload.first_steps)
    show(f"  {side}: {measured['tokens_per_second']:.4g} trained tokens/s, waited {measured['waited']:.0%}")
    return measured


def figures_of(reader: RunReader, *, num_turns: int, first_steps: int) -> dict[str, float]:
    """Of the steps after the first ones; stops if the two sides did not do the same work."""
    steps = reader.steps()
    for trajectory in reader.trajectories(steps[-1].version):
        sampled = [span for span in trajectory.spans if span.version is not None]
        num_sampled, num_calls = sum(span.num_tokens for span in sampled), len({span.call for span in sampled})
        if (num_sampled, num_calls, trajectory.part) != (SESSION_TOKENS, num_turns, 0):
            raise SystemExit(
                f"asked for {SESSION_TOKENS} tokens in {num_turns} calls, got {num_sampled} in {num_calls}"
            )
    begin, steps = steps[first_steps - 1].seconds, steps[first_steps:]
    seconds = steps[-1].seconds - begin
    return {
        "tokens_per_second": sum(step.metrics["num_tokens"] for step in steps) / seconds,
        "read_tokens_per_second": sum(step.metrics["num_sequence_tokens"] for step in steps) / seconds,
        "waited": sum(step.wait_seconds for step in steps) / seconds,
        "max_staleness": max(max(step.staleness_counts) for step in steps),
    }
