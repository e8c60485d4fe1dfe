"""Sessions of several turns vs. single completions of equal token counts: trained tokens per second of whole runs.

    four calls of 32 tokens, three short turns of a user between them ─┐
    one completion of 128 tokens, the user's words in the prompt      ─┴─► as many given and sampled tokens

A tiny model without an end token makes all lengths equal. No tool and no environment is waited for, and the same
grader judges both sides: what differs is the calls, and the agent worker that makes them.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.end_to_end import QUIET
from bench.harness import ROOT, Result, alternately, record, show
from bench.models import TINY_SIZES
from bench.runs import train
from bench.sides.several_turns import ALPHABET, NUM_TURNS, TOKENS_PER_TURN
from freerun.events.reader import RunReader
from freerun.model.tiny import make_tiny

RECIPE = ROOT / "bench/recipes/several-turns.toml"
NUM_STEPS = 40
FIRST_STEPS = 10
"""Not measured: the buffer fills."""
AT_LEAST, AIM = 0.90, 0.95
SESSION_TOKENS = NUM_TURNS * TOKENS_PER_TURN
SIDES = {
    "sessions": (),
    "completions": (
        *("--rollout.episode", "", "--data.settings", f"num_said={NUM_TURNS - 1}"),
        *("--sampling.max_completion_tokens", str(SESSION_TOKENS)),
    ),
}


def measure(repetitions: int) -> None:
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="freerun-multi-turn-") as scratch:
        model = endless_model(Path(scratch) / "model")

        def rate(side: str) -> float:
            figures[side].append(run(side, model, Path(scratch), seed=len(figures[side])))
            return figures[side][-1]["tokens_per_second"]

        ours, theirs = alternately(
            lambda: rate("sessions"), lambda: rate("completions"), repetitions=repetitions, warms_up=False
        )
    result = Result(
        f"sessions of {NUM_TURNS} turns of {TOKENS_PER_TURN} tokens, tiny model, trained tokens/s",
        f"single completions of {SESSION_TOKENS} tokens",
        AT_LEAST,
        AIM,
        "x",
        ours,
        theirs,
        settings={
            "recipe": str(RECIPE.relative_to(ROOT)),
            "steps": NUM_STEPS,
            "not measured": FIRST_STEPS,
            "runs": figures,
        },
        note="The same tokens given, sampled and trained on both sides, and the same grader; no tools.",
    )
    record("multi_turn", result)


def endless_model(directory: Path) -> Path:
    """A tiny model whose files name no end token: its completions have the length that is asked for."""
    make_tiny(directory, alphabet=ALPHABET, **TINY_SIZES)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings: dict[str, Any] = json.loads((directory / name).read_text())
        kept = {key: value for key, value in settings.items() if key not in ("eos_token", "eos_token_id")}
        (directory / name).write_text(json.dumps(kept, indent=2) + "\n")
    return directory


def run(side: str, model: Path, scratch: Path, *, seed: int) -> dict[str, float]:
    steps = ("--train.num_steps", str(NUM_STEPS), "--run.seed", str(seed))
    overrides = ("--model.path", str(model), *QUIET, *steps, *SIDES[side])
    with train(RECIPE, scratch, f"{side}-{seed}", *overrides) as reader:
        measured = figures_of(reader, num_turns=NUM_TURNS if side == "sessions" else 1)
    show(f"  {side}: {measured['tokens_per_second']:.4g} trained tokens/s, waited {measured['waited']:.0%}")
    return measured


def figures_of(reader: RunReader, *, num_turns: int) -> dict[str, float]:
    """Of the steps after the first ones; stops if the two sides did not do the same work."""
    steps = reader.steps()
    for trajectory in reader.trajectories(steps[-1].version):
        sampled = [span for span in trajectory.spans if span.version is not None]
        num_sampled, num_calls = sum(span.num_tokens for span in sampled), len({span.call for span in sampled})
        if (num_sampled, num_calls, trajectory.part) != (SESSION_TOKENS, num_turns, 0):
            raise SystemExit(
                f"asked for {SESSION_TOKENS} tokens in {num_turns} calls, got {num_sampled} in {num_calls}"
            )
    begin, steps = steps[FIRST_STEPS - 1].seconds, steps[FIRST_STEPS:]
    seconds = steps[-1].seconds - begin
    return {
        "tokens_per_second": sum(step.metrics["num_tokens"] for step in steps) / seconds,
        "read_tokens_per_second": sum(step.metrics["num_sequence_tokens"] for step in steps) / seconds,
        "waited": sum(step.wait_seconds for step in steps) / seconds,
        "max_staleness": max(max(step.staleness_counts) for step in steps),
    }
