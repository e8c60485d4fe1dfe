"""How cost grows: tokens per second of engine and trainer by batch size, length, processes and model size.

A map, not a claim: docs/results/scaling.md has the tables, scaling.svg the curves. Each point is measured once,
on one thread (two engines: two processes of one thread, each on its own core), after a short warm-up. Points that
would take minutes are left out.
"""

import json
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, Side, machine, show
from bench.models import smollm2
from freerun.reports.drawing import COLOURS, MARKERS, STYLE

NUM_SHARED = 64
"""Sequences of one engine, or shared by two."""
PROMPT_TOKENS = 8
MICRO_BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Model:
    """A model, and how much can be measured with it in a minute."""

    name: str
    directory: Path
    new_tokens: int
    """Tokens per sequence when the batch size varies."""
    lengths: tuple[int, ...]
    """Lengths of the sequences that the engine generates."""
    train_tokens: int
    """Tokens per training step when the length varies."""


@dataclass(frozen=True)
class Point:
    stage: str
    """engine or trainer."""
    varied: str
    """The varied quantity: sequences, tokens or engines."""
    value: int
    model: str
    tokens_per_second: float


def measure(repetitions: int) -> None:
    """`repetitions` is not used: the map has many points and no claim."""
    with tempfile.TemporaryDirectory(prefix="freerun-scaling-") as scratch:
        models = _models(Path(scratch))
        points = []
        for model in models:
            for point in chain(_engine_points(model), _trainer_points(model)):
                show(f"  {point}")
                points.append(point)
    RESULTS.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"command": "python -m bench scaling", "machine": machine(), "results": []}
    document["points"] = [asdict(point) for point in points]
    (RESULTS / "scaling.json").write_text(json.dumps(document, indent=2) + "\n")
    _draw(points, RESULTS.parent / "scaling.svg")
    (RESULTS.parent / "scaling.md").write_text(_page(points, [model.name for model in models]))


def _models(scratch: Path) -> list[Model]:
    from freerun.data.tasks import alphabet_of
    from freerun.model.tiny import make_tiny

    alphabet = alphabet_of("euclid")
    sizes = {"hidden_size": 128, "num_layers": 3, "num_heads": 4, "num_kv_heads": 4, "intermediate_size": 384}
    make_tiny(scratch / "tiny", alphabet=alphabet, **sizes)
    sizes = {"hidden_size": 320, "num_layers": 8, "num_heads": 5, "num_kv_heads": 5, "intermediate_size": 896}
    make_tiny(scratch / "small", alphabet=alphabet, **sizes)
    return [
        Model("0.6M", scratch / "tiny", 128, (64, 256, 1024), 8192),
        Model("10M", scratch / "small", 64, (64, 256, 1024), 4096),
        Model("135M (SmolLM2)", smollm2(), 16, (64, 256), 2048),
    ]


def _engine_points(model: Model) -> Iterator[Point]:
    with Side("engine.py", str(model.directory), "1", "128") as side:
        side.ask(groups=_requests(4, 8), num_threads=1)
        for num_sequences in (1, 4, 16, 64, 128):
            speed = _generated(side, num_sequences, model.new_tokens)
            yield Point("engine", "sequences", num_sequences, model.name, speed)
            if num_sequences == NUM_SHARED:
                yield Point("engine", "engines", 1, model.name, speed)
        for length in model.lengths:
            speed = _generated(side, 16, length - PROMPT_TOKENS)
            yield Point("engine", "tokens", length, model.name, speed)
    # Half the slots for each: the side gives every slot a cache of the longest sequence.
    with Side("engine.py", str(model.directory), "2", str(NUM_SHARED // 2)) as side:
        side.ask(groups=_requests(16, 8), num_threads=1)
        yield Point("engine", "engines", 2, model.name, _generated(side, NUM_SHARED, model.new_tokens))


def _generated(side: Side, num_sequences: int, new_tokens: int) -> float:
    figures = side.ask(groups=_requests(num_sequences, new_tokens), num_threads=1)
    return float(figures["tokens"] / figures["seconds"])


def _requests(num_sequences: int, new_tokens: int) -> list[dict[str, Any]]:
    """In groups of up to eight samples."""
    group_size = min(8, num_sequences)
    prompts = _token_ids(num_sequences // group_size, PROMPT_TOKENS)
    return [{"prompt": prompt, "lengths": [new_tokens] * group_size} for prompt in prompts]


def _trainer_points(model: Model) -> Iterator[Point]:
    with Side("trainer.py", str(model.directory)) as side:
        _trained(side, 4, 32)
        for num_sequences in (2, 8, 32, 128):  # of one alone the advantage is 0, and nothing is computed
            if num_sequences * 128 < model.train_tokens * 2:
                speed = _trained(side, num_sequences, 128)
                yield Point("trainer", "sequences", num_sequences, model.name, speed)
        for length in (64, 256, 1024):
            speed = _trained(side, model.train_tokens // length, length)
            yield Point("trainer", "tokens", length, model.name, speed)


def _trained(side: Side, num_sequences: int, length: int) -> float:
    """A step on sequences of equal length, in groups of one: none shares its prompt with another."""
    prompts = _token_ids(num_sequences, PROMPT_TOKENS)
    completions = _token_ids(num_sequences, length - PROMPT_TOKENS)
    groups = [
        {"prompt": prompt, "completions": [completion], "rewards": [float(i % 2)], "behaviour_logprob": -3.0}
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    seconds = side.ask(groups=groups, num_threads=1, micro_batch_tokens=MICRO_BATCH_TOKENS)["seconds"]
    return num_sequences * length / float(seconds)


def _token_ids(num_sequences: int, length: int) -> list[list[int]]:
    """Any will do: the work depends on the lengths alone."""
    rng = random.Random(length)
    return [[rng.randrange(1, 15) for _ in range(length)] for _ in range(num_sequences)]


# ---- what comes of it -----------------------------------------------------------------------------

PANELS = (
    ("engine", "sequences", "Engine by batch size", "sequences at once"),
    ("engine", "tokens", "Engine by length (16 sequences)", "tokens of a sequence"),
    ("trainer", "sequences", "Trainer by batch size", "sequences of 128 tokens in a step"),
    ("trainer", "tokens", "Trainer by length", "tokens of a sequence"),
)


def _draw(points: Sequence[Point], path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point.model for point in points))
    with rc_context(STYLE | {"svg.hashsalt": "scaling"}):
        figure = Figure(figsize=(9.6, 7), layout="constrained")
        panels = figure.subplots(2, 2, sharey=True).flat
        for panel, (stage, varied, title, x_label) in zip(panels, PANELS, strict=True):
            for index, name in enumerate(names):
                curve = [p for p in points if (p.stage, p.varied, p.model) == (stage, varied, name)]
                xs, ys = [p.value for p in curve], [p.tokens_per_second for p in curve]
                look = {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 4.5}
                panel.plot(xs, ys, label=f"{name} parameters", **look)
            panel.set(title=title, xlabel=x_label, ylabel="tokens per second", xscale="log", yscale="log")
            panel.set_xticks(ticks := sorted({p.value for p in points if (p.stage, p.varied) == (stage, varied)}))
            panel.set_xticklabels([str(tick) for tick in ticks])
            panel.yaxis.set_major_formatter(lambda speed, position: f"{speed:,.0f}")
            panel.minorticks_off()
        handles, labels = panel.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.savefig(path, metadata={"Date": None})


def _page(points: Sequence[Point], models: Sequence[str]) -> str:
    about = {
        ("engine", "sequences"): "Engine, tokens/s by sequences decoded at once (prompts of 8 tokens)",
        ("engine", "tokens"): "Engine, tokens/s by the length of 16 sequences",
        ("engine", "engines"): "Engine, tokens/s by engine processes, 64 sequences in all",
        ("trainer", "sequences"): "Trainer, tokens/s by sequences of 128 tokens in a step",
        ("trainer", "tokens"): "Trainer, tokens/s by the length of the sequences, as many tokens in each step",
    }
    tables = [_table(points, models, stage, varied, title) for (stage, varied), title in about.items()]
    return PAGE + "\n".join(tables)


def _table(points: Sequence[Point], models: Sequence[str], stage: str, varied: str, title: str) -> str:
    speeds = {(p.value, p.model): p.tokens_per_second for p in points if (p.stage, p.varied) == (stage, varied)}
    values = sorted({value for value, _ in speeds})
    lines = [f"| {varied} | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for value in values:
        cells = [_rounded(speeds.get((value, model), math.nan)) for model in models]
        lines.append(f"| {value} | {' | '.join(cells)} |")
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _rounded(speed: float) -> str:
    return "" if math.isnan(speed) else f"{float(f'{speed:.3g}'):,.0f}"


PAGE = """# How cost grows

Tokens per second of engine and trainer, float32, one thread per process, measured once by `python -m bench
scaling` on the machine in [speed/scaling.json](speed/scaling.json). Points that would take minutes are empty. The
models of 0.6M and 10M parameters have a vocabulary of 16, SmolLM2 one of 49,152.

![tokens per second by batch size and by length](scaling.svg)

"""
