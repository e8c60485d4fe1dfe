"""Simulations of this machine's own runs: step time, the gain of asynchrony, staleness, each beside the real run.

    python -m bench.calibrated [--repetitions 3] [--steps 100]      # some ten minutes on an idle machine
    python -m bench.calibrated --repetitions 1 --steps 12 --untrained          # whether it works

Every repetition trains Euclid to 199 in five ways in turns: asynchronous, synchronous, one step of overlap, and
asynchronous with drained and with recomputed caches. Each run is calibrated from its own store and simulated with
the same recipe. A second simulation uses the calibration of the repetition's asynchronous run: what somebody would
get who measures once and asks about other settings. The warm-started model is made first if there is none
(`bench/runs.py`).

Engine and trainer have a core each and lend none: lending is not simulated. The first steps are left out.
"""

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.end_to_end import QUIET
from bench.euclid import OVERLAP
from bench.harness import ROOT, Result, at_most, record, show
from bench.models import tiny
from bench.runs import EUCLID, euclid_start, train
from freerun.config.load import load_recipe
from freerun.simulation.calibration import Calibration, calibrate_run
from freerun.simulation.run import simulate

ASYNCHRONOUS, SYNCHRONOUS = "asynchronous", "synchronous"
WAYS: dict[str, tuple[str, ...]] = {
    ASYNCHRONOUS: (),
    SYNCHRONOUS: ("--buffer.max_staleness", "0"),
    "one step of overlap": OVERLAP,
    "drain": ("--engine.kv_on_load", "drain"),
    "recompute": ("--engine.kv_on_load", "recompute"),
}
A_CORE_EACH = ("--train.num_threads", "1", "--engine.num_threads", "1")
NUM_STEPS = 100
NUM_WARM = 7
"""Steps in which the pipeline fills: not compared."""
MAX_ERROR_PERCENT = 15.0
MAX_DISTANCE = 0.15


class Course(NamedTuple):
    """What is compared of a run, real or simulated."""

    step_seconds: float
    staleness: Mapping[int, int]


@dataclass(frozen=True)
class Compared:
    """One way in one repetition."""

    real: Course
    simulated: Course

    @property
    def error(self) -> float:
        """Of the step time, relative."""
        return self.simulated.step_seconds / self.real.step_seconds - 1

    @property
    def distance(self) -> float:
        return total_variation(self.real.staleness, self.simulated.staleness)


def measure(repetitions: int, *, num_steps: int = NUM_STEPS, is_trained: bool = True) -> None:
    start = euclid_start() if is_trained else ["--model.path", str(tiny()), "--sft.num_steps", "0"]
    own: list[dict[str, Compared]] = []
    predicted: list[dict[str, Compared]] = []
    for repetition in range(repetitions):
        show(f"repetition {repetition + 1}")
        with tempfile.TemporaryDirectory(prefix="freerun-calibrated-") as scratch:
            found = _repetition(Path(scratch), repetition, [*start, *A_CORE_EACH, *QUIET], num_steps)
        own.append(found[0])
        predicted.append(found[1])
    kinds = {"from each run's own store": own, "from the asynchronous run": predicted}
    show(table(kinds))
    settings = {"recipe": str(EUCLID.relative_to(ROOT)), "steps": num_steps, "warm": NUM_WARM}
    if is_trained:
        record("calibrated", *(row for kind, found in kinds.items() for row in _rows(kind, found, settings)))
    else:
        show("not recorded: the model is untrained")


def _repetition(
    runs: Path, repetition: int, overrides: Sequence[str], num_steps: int
) -> tuple[dict[str, Compared], dict[str, Compared]]:
    """Each way run, calibrated and simulated; every other repetition goes backwards."""
    real: dict[str, tuple[Course, Calibration]] = {}
    for way in list(WAYS) if repetition % 2 == 0 else list(WAYS)[::-1]:
        keys = (*overrides, *WAYS[way], "--train.num_steps", str(num_steps), "--run.seed", str(repetition))
        name = way.replace(" ", "-")
        with train(EUCLID, runs, name, *keys) as reader:
            steps = reader.steps()
        staleness: Counter[int] = Counter()
        for step in steps[NUM_WARM:]:
            staleness.update(step.staleness_counts)
        seconds = (steps[-1].seconds - steps[NUM_WARM - 1].seconds) / (len(steps) - NUM_WARM)
        real[way] = Course(seconds, staleness), calibrate_run(runs / name)

    def compare(way: str, calibration: Calibration) -> Compared:
        recipe = load_recipe(EUCLID, [*overrides, *WAYS[way], "--train.num_steps", str(num_steps)])
        outcome = simulate(calibration.setup(recipe, num_warm_steps=NUM_WARM))
        return Compared(real[way][0], Course(outcome.step_seconds, outcome.staleness))

    own = {way: compare(way, real[way][1]) for way in WAYS}
    return own, {way: compare(way, real[ASYNCHRONOUS][1]) for way in WAYS}


def total_variation(one: Mapping[int, int], other: Mapping[int, int]) -> float:
    """From 0, the same distribution, to 1, nothing in common."""
    totals = sum(one.values()), sum(other.values())
    values = one.keys() | other.keys()
    return sum(abs(one.get(v, 0) / totals[0] - other.get(v, 0) / totals[1]) for v in values) / 2


def ratio_error(found: Mapping[str, Compared]) -> float:
    """Of how many times faster the asynchronous run is than the synchronous one, relative."""
    real = found[SYNCHRONOUS].real.step_seconds / found[ASYNCHRONOUS].real.step_seconds
    simulated = found[SYNCHRONOUS].simulated.step_seconds / found[ASYNCHRONOUS].simulated.step_seconds
    return simulated / real - 1


# ---- what is told -------------------------------------------------------------------------------


def table(kinds: Mapping[str, Sequence[Mapping[str, Compared]]]) -> str:
    """Every way with its medians, then the figures that have a target."""
    lines = []
    for kind, repetitions in kinds.items():
        lines += [
            f"calibrated {kind}:",
            f"  {'':22}{'real step':>10}{'simulated':>11}{'error':>8}{'staleness':>11}",
        ]
        for way in WAYS:
            found = [each[way] for each in repetitions]
            real = statistics.median(each.real.step_seconds for each in found)
            simulated = statistics.median(each.simulated.step_seconds for each in found)
            error = statistics.median(each.error for each in found)
            distance = statistics.median(each.distance for each in found)
            lines.append(f"  {way:22}{real:>8.3f} s{simulated:>9.3f} s{error:>+8.0%}{distance:>11.2f}")
    return "\n".join(lines)


def _rows(kind: str, repetitions: Sequence[Mapping[str, Compared]], settings: Mapping[str, Any]) -> list[Result]:
    details = dict(settings) | {
        "ways": {
            way: [
                {
                    "real_step_seconds": each[way].real.step_seconds,
                    "simulated_step_seconds": each[way].simulated.step_seconds,
                    "real_staleness": dict(each[way].real.staleness),
                    "simulated_staleness": dict(each[way].simulated.staleness),
                    "staleness_distance": each[way].distance,
                }
                for each in repetitions
            ]
            for way in WAYS
        }
    }

    def row(claim: str, limit: float, unit: str, ours: list[float], note: str = "") -> Result:
        claim = f"simulated run, calibrated {kind}, {claim}"
        return at_most(claim, limit, unit, ours, details, peer="the real run", note=note)

    step_errors = [100 * statistics.median(abs(way.error) for way in each.values()) for each in repetitions]
    ratio_errors = [100 * abs(ratio_error(each)) for each in repetitions]
    distances = [max(way.distance for way in each.values()) for each in repetitions]
    return [
        row("error of the step time, median of five ways", MAX_ERROR_PERCENT, " %", step_errors),
        row("error of asynchronous against synchronous", MAX_ERROR_PERCENT, " %", ratio_errors),
        row(
            "distance of staleness, worst of five ways",
            MAX_DISTANCE,
            "",
            distances,
            "Total variation of the shares of samples by staleness: 0 is the same, 1 has nothing in common.",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--untrained", action="store_true", help="without the warm-started model; records nothing")
    args = parser.parse_args()
    measure(args.repetitions, num_steps=args.steps, is_trained=not args.untrained)


if __name__ == "__main__":
    main()
