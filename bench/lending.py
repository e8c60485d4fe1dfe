"""What core lending is worth: an asynchronous run with the cores of idle engines lent to the trainer, or without.

A fixed `train.num_threads` turns lending off. Three workloads: the tiny Euclid model, where decoding is
latency-bound; the demo; and SmolLM2 with lengths to 256 in its steady state, where compute is the limit.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.end_to_end import EndToEnd
from bench.harness import ROOT, Result, Side, alternately, record
from bench.models import smollm2
from bench.runs import EUCLID, euclid_start
from bench.smollm2 import RECIPE as SMOLLM2
from bench.trl import trained_tokens_per_second

DEMO = ROOT / "recipes/times-tables.toml"
AT_LEAST = 1.05
NOT_LENT = ("--train.num_threads", "1")


def measure(repetitions: int) -> None:
    model = ("--model.path", str(smollm2()))
    record(
        "lending",
        _whole_runs("Euclid to 199, tiny model", EUCLID, 100, euclid_start(), repetitions),
        _whole_runs("demo", DEMO, 20, model, repetitions),
        _steady_state(model, repetitions),
    )


def _whole_runs(
    what: str, recipe: Path, num_steps: int, overrides: list[str] | tuple[str, ...], repetitions: int
) -> Result:
    with tempfile.TemporaryDirectory(prefix="freerun-lending-") as scratch:
        runs = EndToEnd(recipe, Path(scratch), num_steps=num_steps, overrides=overrides)
        figures = runs.alternately({"lent": (), "not lent": NOT_LENT}, repetitions=repetitions)
    return Result(
        f"core lending, {what}, trained trajectories/s",
        "the same run without lending",
        AT_LEAST,
        AT_LEAST,
        unit="x",
        ours=figures["lent"].trajectories_per_second,
        theirs=figures["not lent"].trajectories_per_second,
        settings={"runs": {side: figures[side].details for side in figures}},
    )


def _steady_state(model: tuple[str, ...], repetitions: int) -> Result:
    overrides = (*model, "--sampling.max_completion_tokens", "256")
    seeds = iter(range(1_000))
    with ExitStack() as sides:
        lent = sides.enter_context(Side("rl.py", str(SMOLLM2), *overrides))
        own = sides.enter_context(Side("rl.py", str(SMOLLM2), *overrides, *NOT_LENT))
        ours, theirs = alternately(
            lambda: trained_tokens_per_second(lent.ask(num_steps=4, seed=next(seeds))),
            lambda: trained_tokens_per_second(own.ask(num_steps=4, seed=next(seeds))),
            repetitions=repetitions,
            warms_up=False,
        )
    return Result(
        "core lending, SmolLM2-135M, lengths to 256, trained tokens/s",
        "the same run without lending",
        AT_LEAST,
        AT_LEAST,
        unit="x",
        ours=ours,
        theirs=theirs,
    )
