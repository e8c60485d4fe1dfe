"""Rollout workers that come and go, simulated: lengths that drift, a bad start, and what the balance makes of it.

    .venv/bin/python -m bench.balance            # writes docs/results/balance.md, some ten minutes of two cores

The world of AReaL's runs, with set A of docs/results/simulation.md: 128 H800 GPUs, 512 prompts x 16 a step,
max_staleness 8, at an eighth of its size, so that one rollout worker stands for 8 GPUs.
"""

import argparse
import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.paper import table
from bench.paper_world import GPU, MEMORY_SHARE, PROMPT_TOKENS
from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.events.events import AnyEvent, Notice
from freerun.simulation.costs import RooflineEngine, RooflineTrainer, WeightCosts
from freerun.simulation.elastic import ElasticSplit
from freerun.simulation.lengths import Drift, LognormalLengths
from freerun.simulation.run import Setup, simulate
from freerun.simulation.shapes import MODEL_SHAPES

PAGE = Path(__file__).parents[1] / "docs" / "results" / "balance.md"
SCALE = 8
NUM_GPUS = 128 // SCALE
PAPER_SPLIT = NUM_GPUS * 3 // 4
FIXED = (4, 6, 7, 8, 9, 10, 11, PAPER_SPLIT, 13)
"""Rollout workers of the fixed splits."""
STARTS = (PAPER_SPLIT, 10, 8, 4)
MODELS = ("7b", "1.5b")
SHORT, LONG, SIGMA, CAP = 2000, 16000, 0.8, 31744
NUM_STEPS = 60
PROMPTS = 512 // SCALE
DRIFTS = {
    "2k to 16k": (SHORT, Drift(LONG / SHORT, NUM_STEPS * PROMPTS)),
    "16k to 2k": (LONG, Drift(SHORT / LONG, NUM_STEPS * PROMPTS)),
    "2k to 16k and back": (SHORT, Drift(LONG / SHORT, NUM_STEPS * PROMPTS, comes_back=True)),
}
"""Mean length before the cap at the start, and how it changes."""


@dataclass(frozen=True)
class Case:
    """One simulated run."""

    model: str
    drift: str
    num_workers: int
    """At the start; of a fixed split always."""
    is_balanced: bool = False
    trainer_gpus: int = 0
    """If it keeps its number: a retired worker's GPUs are free then. 0 gives it all that rollouts do not have."""
    seed: int = 0


@dataclass(frozen=True)
class Result:
    hours: float
    tokens_per_second: float
    num_moves: int
    mean_workers: float
    gate_closed: float
    trainer_waits: float


def run(case: Case) -> Result:
    moves: list[AnyEvent] = []
    outcome = simulate(
        setup_of(case), emit=lambda event: moves.append(event) if isinstance(event, Notice) else None
    )
    return Result(
        outcome.seconds / 3600,
        SCALE * outcome.tokens_per_second,
        len(moves),
        outcome.mean_engines,
        outcome.gate_closed,
        outcome.trainer_waits,
    )


def trainer_beside(num_workers: int, *, model: str) -> RooflineTrainer:
    return RooflineTrainer(GPU, MODEL_SHAPES[f"qwen2.5-{model}"], NUM_GPUS - num_workers, passes=5.0)


def setup_of(case: Case) -> Setup:
    shape = MODEL_SHAPES[f"qwen2.5-{case.model}"]
    engine = RooflineEngine(GPU, shape, memory_share=MEMORY_SHARE[case.model])
    mean, drift = DRIFTS[case.drift]
    most = case.num_workers if case.trainer_gpus or not case.is_balanced else NUM_GPUS - 1
    trainer_with = partial(trainer_beside, model=case.model)
    fixed = trainer_with(NUM_GPUS - case.trainer_gpus if case.trainer_gpus else case.num_workers)
    elastic = ElasticSplit(case.num_workers, (lambda number: fixed) if case.trainer_gpus else trainer_with)
    num_bytes = 2 * shape.num_parameters
    return Setup(
        recipe=Recipe(
            data=DataConfig(task="times-tables", max_prompt_tokens=1024),
            sampling=SamplingConfig(group_size=16, max_completion_tokens=CAP),
            engine=EngineConfig(
                num_workers=most,
                min_workers=1 if case.is_balanced else 0,
                num_slots=256,
                cache_tokens=engine.cache_tokens,
                prefill_chunk_tokens=8192,
            ),
            buffer=BufferConfig(max_staleness=8),
            train=TrainConfig(num_steps=NUM_STEPS * (2 if drift.comes_back else 1), prompts_per_step=PROMPTS),
        ),
        engine_costs=engine,
        trainer_costs=fixed,
        lengths=LognormalLengths(math.log(mean) - SIGMA**2 / 2, SIGMA, CAP, drift=drift, seed=case.seed),
        weights=WeightCosts(transfer_seconds=num_bytes / 4e9 + 2.5, load_seconds=num_bytes / 1.5e9),
        prompt_tokens=PROMPT_TOKENS,
        elastic=elastic if case.is_balanced else None,
    )


def cases(model: str) -> Iterator[Case]:
    for drift in DRIFTS:
        for number in FIXED:
            yield Case(model, drift, number)
        for number in STARTS:
            yield Case(model, drift, number, is_balanced=True)
        yield Case(model, drift, PAPER_SPLIT, is_balanced=True, trainer_gpus=NUM_GPUS - PAPER_SPLIT)


def moving(results: dict[Case, Result], model: str) -> str:
    """GPUs move between rollouts and training."""
    rows = []
    for drift in DRIFTS:
        fixed = {number: results[Case(model, drift, number)] for number in FIXED}
        paper = fixed[PAPER_SPLIT].tokens_per_second
        best = max(fixed, key=lambda number: fixed[number].tokens_per_second)
        most = fixed[best].tokens_per_second
        rows.append([f"{drift}, fixed, 75 %", _thousand(paper), "1.00x", f"{paper / most - 1:+.0%}", ""])
        rows.append([f"{drift}, fixed, {_share(best)}, the best", _thousand(most), f"{most / paper:.2f}x", "", ""])
        for number in STARTS:
            balanced = results[Case(model, drift, number, is_balanced=True)]
            rate = balanced.tokens_per_second
            rows.append([
                f"{drift}, balanced from {_share(number)}", _thousand(rate), f"{rate / paper:.2f}x",
                f"{rate / most - 1:+.0%}", str(balanced.num_moves),
            ])  # fmt: skip
    return table(["GPUs for rollouts", "thousand tokens/s", "to 75 %", "to the best fixed", "moves"], rows)


def leaving(results: dict[Case, Result], model: str) -> str:
    """Only rollout workers come and go: the trainer keeps its quarter of the GPUs, and what is freed is free."""
    rows = []
    for drift in DRIFTS:
        fixed = results[Case(model, drift, PAPER_SPLIT)]
        own = NUM_GPUS - PAPER_SPLIT
        elastic = results[Case(model, drift, PAPER_SPLIT, is_balanced=True, trainer_gpus=own)]
        gpu_hours = (elastic.mean_workers + own) * elastic.hours / (NUM_GPUS * fixed.hours)
        rows.append([
            drift, f"{elastic.tokens_per_second / fixed.tokens_per_second:.2f}x",
            f"{SCALE * elastic.mean_workers:.0f} of {SCALE * PAPER_SPLIT}", f"{gpu_hours - 1:+.0%}",
            str(elastic.num_moves),
        ])  # fmt: skip
    return table(["length", "tokens/s to 75 %, fixed", "GPUs for rollouts, mean", "GPU hours", "moves"], rows)


def _thousand(rate: float) -> str:
    return f"{rate / 1e3:.0f}"


def _share(number: int) -> str:
    return f"{100 * number / NUM_GPUS:g} %"


BEFORE = """# Rollout workers that come and go, simulated

Nothing here was run on GPUs. `.venv/bin/python -m bench.balance` computes every table again: the real
controller with `engine.min_workers` ([how it decides](../cluster.md#rollout-workers-that-come-and-go)) beside
fixed splits, in a world of 128 H800 GPUs with set A of [simulation.md](simulation.md) (expect 25 % either way),
512 prompts x 16 a step, max_staleness 8, one seed. Mean lengths before the cap drift from 2,000 to 16,000
tokens over 60 steps, the other way, or there and back over 120. The fixed splits give rollouts {fixed}
of the GPUs; which of them is best is known in hindsight only. A move costs the trainer 60 s, and a worker that
is added 30 s. Moves are at least three steps apart.

**Wanted** from any start: 1.25 times what the fixed 75 % train, and at most 10 % less than the best fixed split.
**7B** has both, but for one start: from 25 % while completions are longest it is 23 % behind. **1.5B** never
trains 1.25 times as much (0.90 to 1.21), and is 12 to 33 % behind in six rows of twelve. Three causes, from the
steps of these runs:

- A move of GPUs holds the trainer for 60 s, and steps of 1.5B take as little as 30 s: 15 moves are 13 % of a run
  of two hours. The best fixed split itself trains only 1.2 times as much as 75 % while lengths grow.
- One worker moves in three steps. A run that starts far off spends its first ten to fifteen steps on the way, and
  these are its longest if completions get shorter.
- A step that waits for one long completion lets the buffer fill, and the gate is closed until it is consumed. The
  control takes that for too many workers, and retires some although the trainer has waited.
"""
MOVING = """**GPUs move between rollouts and training.** A real run does not do this, because its ranks change only
with `--resume`. It shows how good the control is."""
LEAVING = """**Only rollout workers come and go**, as in a real run: the trainer keeps a quarter of the GPUs, and
the GPUs of a worker that has retired are free for other jobs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), choices=MODELS, help="only these; writes no page"
    )
    args = parser.parse_args()
    splits = f"{', '.join(map(_share, FIXED[:-1]))} or {_share(FIXED[-1])}"
    parts, began = [BEFORE.format(fixed=splits)], time.perf_counter()
    for model in args.models:
        every = list(cases(model))
        with ProcessPoolExecutor(2) as pool:
            results = dict(zip(every, pool.map(run, every), strict=True))
        parts += [f"## {model.upper()}", MOVING, moving(results, model), LEAVING, leaving(results, model)]
        print("\n\n".join(parts[-4:]), f"({time.perf_counter() - began:.0f} s)", flush=True)
    if set(args.models) == set(MODELS):
        PAGE.write_text("\n\n".join(part.strip() for part in parts) + "\n")
        print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
