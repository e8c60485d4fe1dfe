"""The AReaL paper, simulated: its figures beside what the simulator says, with two sets of constants.

    .venv/bin/python -m bench.paper            # writes docs/results/simulation.md, some six minutes of one core
    .venv/bin/python -m bench.paper --fit      # how the constants were found, some four minutes more

Set A was fitted to six synchronous step times of AReaL's tutorial and to nothing else. Set B was fitted to the 7B
half of Fig. 4; the 1.5B half and Table 1 test it.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from bench import paper_figures as published
from bench.paper_text import AFTER, BEFORE
from bench.paper_world import CONCURRENT, ConstantSet, Setting, run, thousand_tokens
from freerun.simulation.costs import CONSTANTS, Constants

PAGE = Path(__file__).parents[1] / "docs" / "results" / "simulation.md"
SET_A = ConstantSet("A", CONSTANTS, 0.5, "six tutorial times")
SET_B = ConstantSet("B", Constants(4.5e-3, 0.85, 0.38), 0.5, "Fig. 4, 7B")
SETS = (SET_A, SET_B)
FIT_A = [
    ConstantSet("", Constants(overhead, attention, 0.3), 0.5, "")
    for overhead in (2e-3, 3e-3, 4.5e-3, 6e-3)
    for attention in (0.7, 0.85)
]
FIT_B = [
    ConstantSet("", Constants(overhead, 0.85, mfu), 0.5, "")
    for overhead in (3e-3, 4.5e-3, 6e-3)
    for mfu in (0.3, 0.38)
]


@dataclass
class Comparison:
    """Published against simulated, by figure and set of constants."""

    errors: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def note(self, figure: str, chosen: ConstantSet, simulated: float, wanted: float) -> str:
        error = simulated / wanted - 1
        self.errors.setdefault((figure, chosen.name), []).append(abs(error))
        return f"{_number(simulated)} ({error:+.0%})"

    def median(self, figures: Iterable[str], chosen: ConstantSet) -> str:
        errors = [error for figure in figures for error in self.errors.get((figure, chosen.name), [])]
        return f"{median(errors):.0%} (worst {max(errors):.0%}, n = {len(errors)})" if errors else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- the figures --------------------------------------------------------------------------------


def asynchronous(model: str, num_gpus: int, **settings: object) -> Setting:
    """AReaL: three quarters of the GPUs generate, one batch of trajectories is under way."""
    fixed: dict[str, object] = {
        "max_staleness": 4, "num_concurrent": CONCURRENT, "counts_groups": True,
    } | settings  # fmt: skip
    return Setting(model, num_gpus * 3 // 4, num_gpus // 4, **fixed)  # type: ignore[arg-type]


def in_turns(model: str, num_gpus: int, **settings: object) -> Setting:
    """verl: all GPUs generate, then all train."""
    return Setting(model, num_gpus, num_gpus, max_staleness=0, **settings)  # type: ignore[arg-type]


def tutorial_setting(point: published.TutorialTime) -> Setting:
    half = point.num_gpus // 2
    return Setting(point.model, half, half, max_staleness=0, group_size=point.group_size, passes=4.0)


def tutorial(compared: Comparison) -> str:
    rows = []
    for point in published.TUTORIAL:
        cells = []
        for chosen in SETS:
            outcome, _ = run(tutorial_setting(point), chosen)
            cells.append(compared.note("tutorial", chosen, outcome.step_seconds, point.seconds))
        rows.append([point.model, str(point.num_gpus), _number(point.seconds), *cells])
    return table(["model", "GPUs", "published, s", *_set_columns()], rows)


def by_staleness(compared: Comparison) -> str:
    rows = []
    base = {chosen.name: 0.0 for chosen in SETS}
    for bound, wanted in published.BY_STALENESS.items():
        setting = asynchronous("1.5b", 128, max_staleness=bound, num_concurrent=CONCURRENT if bound else 0)
        cells, ratios = [], []
        for chosen in SETS:
            simulated = thousand_tokens(setting, chosen)
            base[chosen.name] = base[chosen.name] or simulated
            cells.append(compared.note("Fig. 5c", chosen, simulated, wanted))
            ratios.append(f"{simulated / base[chosen.name]:.2f}")
        name = "no bound" if bound == published.INFINITE else str(bound)
        rows.append([name, _number(wanted), *cells, f"{wanted / published.BY_STALENESS[0]:.2f}", *ratios])
    return table(["max_staleness", "published", *_set_columns(), "ratio", *_set_columns()], rows)


def by_staleness_8_gpus(compared: Comparison) -> str:
    rows = []
    for rollout_gpus in (6, 5, 4):
        for chosen in SETS:
            ratios, base = [], 0.0
            for bound in published.BY_STALENESS_8_GPUS:
                setting = Setting(
                    "1.5b", rollout_gpus, 8 - rollout_gpus, bound, prompts_per_step=64, cap=7168,
                    num_concurrent=1024 if bound else 0, counts_groups=True,
                )  # fmt: skip
                simulated = thousand_tokens(setting, chosen)
                base = base or simulated
                ratios.append(f"{simulated / base:.2f}")
            rows.append([f"{rollout_gpus} + {8 - rollout_gpus}, set {chosen.name}", *ratios])
    wanted = published.BY_STALENESS_8_GPUS
    first = ["published", *(f"{value / wanted[0]:.2f}" for value in wanted.values())]
    return table(["split", *map(str, wanted)], [first, *rows])


def scaling(compared: Comparison, model: str) -> str:
    rows = []
    for point in (point for point in published.SCALING if point.model == model):
        cap = point.context - 1024
        cells = []
        figure = "Fig. 4, 32B" if point.model == "32b" else f"Fig. 4, {point.model.upper()}"
        for chosen in SETS:
            simulated = thousand_tokens(asynchronous(point.model, point.num_gpus, cap=cap), chosen)
            cells.append(compared.note(f"{figure} AReaL", chosen, simulated, published.MINIBATCHES * point.areal))
        verl = ["", *("" for _ in SETS)]
        if point.verl is not None:
            verl = [_number(published.MINIBATCHES * point.verl)]
            for chosen in SETS:
                simulated = thousand_tokens(in_turns(point.model, point.num_gpus, cap=cap), chosen)
                verl.append(compared.note(f"{figure} verl", chosen, simulated, published.MINIBATCHES * point.verl))
        what = f"{point.model}, {point.context // 1024}k, {point.num_gpus} GPUs"
        rows.append([what, _number(published.MINIBATCHES * point.areal), *cells, *verl])
    header = ["", "AReaL, published x 4", *_set_columns(), "verl, published x 4", *_set_columns()]
    return table(header, rows)


def hours(compared: Comparison) -> str:
    rows = []
    for model, point in published.HOURS.items():
        is_checked = model in ("1.5b", "7b")
        settings: dict[str, tuple[Setting, float]] = {
            "verl": (in_turns(model, point.num_gpus), point.verl),
            "synchronous": (
                asynchronous(model, point.num_gpus, max_staleness=0, num_concurrent=0), point.synchronous
            ),
            "AReaL": (asynchronous(model, point.num_gpus, max_staleness=point.max_staleness), point.areal),
        }  # fmt: skip
        for who, (setting, wanted) in settings.items():
            cells = []
            for chosen in SETS:
                outcome, _ = run(setting, chosen)
                simulated = outcome.step_seconds * point.num_steps / 3600
                figure = "Table 1" if is_checked else "Table 1, code"
                cells.append(compared.note(figure, chosen, simulated, wanted))
            rows.append([f"{model}, {point.num_gpus} GPUs, {who}", _number(wanted), *cells])
    return table(["", "published, h", *_set_columns()], rows)


def interrupts(compared: Comparison) -> str:
    rows = []
    for model, wanted in published.INTERRUPTIBLE.items():
        cells = []
        for chosen in SETS:
            rates = []
            for kv_on_load in ("recompute", "drain"):
                outcome, scale = run(asynchronous(model, 32, kv_on_load=kv_on_load, cap=31744), chosen)
                rates.append(scale * outcome.sampled_per_second)
            cells.append(f"{rates[0] / rates[1] - 1:+.0%}")
        rows.append([model, f"{wanted - 1:+.0%}", *cells])
    return table(["model", "published", *_set_columns()], rows)


def choices(compared: Comparison) -> str:
    """freerun's own rules in the same world: 1.5B, 96 + 32, whole groups counted as AReaL does, set B."""
    rows = []
    for bound in (1, 2, 4):
        for policy in (None, "wait", "drop"):
            setting = asynchronous("1.5b", 128, max_staleness=bound, policy=policy)
            outcome, scale = run(setting, SET_B)
            counts = outcome.staleness
            older = sum(number for staleness, number in counts.items() if staleness > bound) / sum(counts.values())
            sampled = sum(step.num_tokens for step in outcome.steps) / sum(counts.values())
            name = "the paper's gate" if policy is None else f'buffer.policy = "{policy}"'
            rate = scale * outcome.tokens_per_second / 1e3
            rows.append([str(bound), name, _number(rate), f"{older:.0%}", _number(sampled)])
    header = ["max_staleness", "rule", "thousand tokens/s", "older than the bound", "mean length trained on"]
    return table(header, rows)


def samples_or_groups(compared: Comparison) -> str:
    """What counts against the slots: 1.5B, 96 + 32, eta 4, set B."""
    rows = []
    for batches in (1, 2, 3):
        cells = []
        for counts_groups in (True, False):
            setting = asynchronous(
                "1.5b", 128, policy="wait", num_concurrent=batches * CONCURRENT, counts_groups=counts_groups
            )
            outcome, scale = run(setting, SET_B)
            rate = scale * outcome.tokens_per_second / 1e3
            cells.append((rate, f"{setting.rollout_gpus * outcome.mean_decoding * outcome.engine_busy:,.0f}"))
        (by_group, decoding), (by_sample, more) = cells
        gain = f"{by_sample / by_group - 1:+.0%}"
        slots = f"{batches * CONCURRENT:,}"
        rows.append([slots, _number(by_group), decoding, _number(by_sample), more, gain])
    header = ["slots", "whole groups", "decoded at once", "samples", "decoded at once", "gain"]
    return table(header, rows)


NUM_FRESH_WARM, NUM_FRESH = 50, 18
"""Steps; freshness control first changes something after some ten, and comes to rest later."""


def freshness(compared: Comparison) -> str:
    """Rollouts that start as late as the trainer allows: 1.5B, slots for four batches, samples count, set B."""
    rows = []
    for rollout_gpus, bound in itertools.product((96, 80), (2, 4, 8)):
        for keep_fresh in (False, True):
            setting = Setting(
                "1.5b", rollout_gpus, 128 - rollout_gpus, bound, policy="wait", num_concurrent=4 * CONCURRENT,
                keep_fresh=keep_fresh,
            )  # fmt: skip
            outcome, scale = run(setting, SET_B, num_warm=NUM_FRESH_WARM, num_steps=NUM_FRESH)
            counts = outcome.staleness
            mean = sum(staleness * number for staleness, number in counts.items()) / sum(counts.values())
            split = f"{rollout_gpus} + {128 - rollout_gpus}"
            rate = _number(scale * outcome.tokens_per_second / 1e3)
            cells = [rate, f"{mean:.1f}", f"{outcome.trainer_waits:.0%}"]
            rows.append([split, str(bound), "true" if keep_fresh else "false", *cells])
    header = [
        "split", "max_staleness", "buffer.keep_fresh", "thousand tokens/s", "mean staleness", "trainer waits"
    ]  # fmt: skip
    return table(header, rows)


def _set_columns() -> list[str]:
    return [f"set {chosen.name}" for chosen in SETS]


# ---- fitting ------------------------------------------------------------------------------------


def fit_tutorial() -> None:
    """Generation and training take turns there, so the best share of the peak follows from the rest."""
    for chosen in FIT_A:
        pairs = []
        for point in published.TUTORIAL:
            outcome, _ = run(tutorial_setting(point), chosen)
            training = outcome.trainer_busy * outcome.step_seconds - chosen.constants.fixed_seconds
            pairs.append((outcome.step_seconds - training, training, point.seconds))
        best = min(
            (sum(((g + t * 0.3 / mfu) / wanted - 1) ** 2 for g, t, wanted in pairs), mfu)
            for mfu in (m / 100 for m in range(12, 70))
        )
        errors = [f"{(g + t * 0.3 / best[1]) / wanted - 1:+.0%}" for g, t, wanted in pairs]
        constants = chosen.constants
        print(
            f"overhead {constants.overhead_seconds * 1e3:.1f} ms, attention {constants.attention}: "
            f"mfu {best[1]:.2f}, squares {best[0]:.4f}, {' '.join(errors)}",
            flush=True,
        )


def fit_scaling() -> None:
    points = [point for point in published.SCALING if point.model == "7b"]
    for chosen in FIT_B:
        errors = []
        for point in points:
            cap = point.context - 1024
            wanted = published.MINIBATCHES * point.areal
            errors.append(thousand_tokens(asynchronous("7b", point.num_gpus, cap=cap), chosen) / wanted - 1)
            assert point.verl is not None
            wanted = published.MINIBATCHES * point.verl
            errors.append(thousand_tokens(in_turns("7b", point.num_gpus, cap=cap), chosen) / wanted - 1)
        constants = chosen.constants
        print(
            f"overhead {constants.overhead_seconds * 1e3:.1f} ms, mfu {constants.mfu}, likeness "
            f"{chosen.likeness}: squares {sum(error**2 for error in errors):.3f}, "
            f"median {median(map(abs, errors)):.0%}",
            flush=True,
        )


# ---- the page -----------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[Comparison], str]] = {
    "The six times of the tutorial": tutorial,
    "Fig. 5c: throughput by staleness": by_staleness,
    "Fig. 4: strong scaling, 1.5B": partial(scaling, model="1.5b"),
    "Fig. 4: strong scaling, 7B": partial(scaling, model="7b"),
    "Fig. 4: strong scaling, 32B": partial(scaling, model="32b"),
    "Table 1: hours": hours,
    "Table 7: staleness on 8 GPUs, as ratios": by_staleness_8_gpus,
    "Fig. 6b: interruptible generation": interrupts,
    "freerun's own rules in the same world": choices,
    "Samples against whole groups": samples_or_groups,
    "Freshness control": freshness,
}
CHECKED = ("Fig. 5c", "Fig. 4, 1.5B AReaL", "Fig. 4, 1.5B verl", "Fig. 4, 7B AReaL", "Fig. 4, 7B verl", "Table 1")


def summary(compared: Comparison) -> str:
    groups: dict[str, tuple[str, ...]] = {
        "six tutorial times": ("tutorial",),
        "Fig. 5c": ("Fig. 5c",),
        "Fig. 4, AReaL, 1.5B": ("Fig. 4, 1.5B AReaL",),
        "Fig. 4, AReaL, 7B": ("Fig. 4, 7B AReaL",),
        "Fig. 4, verl, 1.5B": ("Fig. 4, 1.5B verl",),
        "Fig. 4, verl, 7B": ("Fig. 4, 7B verl",),
        "Fig. 4, verl, both": ("Fig. 4, 1.5B verl", "Fig. 4, 7B verl"),
        "Table 1, 1.5B and 7B": ("Table 1",),
        "all of these but the tutorial": CHECKED,
        "Fig. 4, 32B": ("Fig. 4, 32B AReaL", "Fig. 4, 32B verl"),
        "Table 1, code (14B, 32B)": ("Table 1, code",),
    }
    fitted = {("six tutorial times", "A"), ("Fig. 4, AReaL, 7B", "B"), ("Fig. 4, verl, 7B", "B")}
    rows = []
    for name, figures in groups.items():
        cells = [
            compared.median(figures, chosen) + (" fitted" if (name, chosen.name) in fitted else "")
            for chosen in SETS
        ]
        rows.append([name, *cells])
    return table(["median error", *_set_columns()], rows)


def section(title: str) -> tuple[str, dict[tuple[str, str], list[float]]]:
    """One section and its errors, in its own process."""
    compared = Comparison()
    return SECTIONS[title](compared), compared.errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="search for the constants instead")
    parser.add_argument("--processes", type=int, default=2, help="that compute sections at once")
    parser.add_argument("--only", metavar="WORD", default="", help="print the sections whose title contains this")
    args = parser.parse_args()
    if args.fit:
        fit_tutorial()
        fit_scaling()
        return
    compared, began, parts = Comparison(), time.perf_counter(), []
    titles = [title for title in SECTIONS if args.only in title]
    with ProcessPoolExecutor(args.processes) as pool:
        for title, (text, errors) in zip(titles, pool.map(section, titles), strict=True):
            compared.errors |= errors
            parts.append(f"## {title}\n\n{text}\n")
            print(parts[-1], f"({time.perf_counter() - began:.0f} s)", flush=True)
    if not args.only:
        constants = table(
            ["set", "overhead of a step", "attention", "MFU", "likeness", "fitted to"],
            [
                [s.name, f"{s.constants.overhead_seconds * 1e3:g} ms", f"{s.constants.attention:g}",
                 f"{s.constants.mfu:g}", f"{s.likeness:g}", s.origin]
                for s in SETS
            ],
        )  # fmt: skip
        head = BEFORE.format(constants=constants, summary=summary(compared))
        PAGE.write_text("\n".join([head, *parts, AFTER]))
        print(f"written to {PAGE}; {len(list(itertools.chain(*compared.errors.values())))} comparisons")


if __name__ == "__main__":
    main()
