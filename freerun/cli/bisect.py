"""`freerun bisect`: the step in which a run collapsed, what changed in it, and the samples that drove it."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run
from freerun.cli.streams import harmless
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.reports.bisect import Bisection, Carrier
    from freerun.reports.collapse import EvalFall, Fall

EPILOG = """\
A collapse is a fall from the best level that the metric did not recover from. docs/replay.md has the method. The
samples are those of the steps that could have caused it, the largest advantage x weight first.

examples:
  freerun bisect runs/times-tables
  freerun bisect runs/times-tables --metric reward
  freerun bisect runs/times-tables --metric entropy --from 10 --until 40 --limit 10
"""
MAX_TEXT = 60


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    found = find_run(args.run)
    if args.limit < 1:
        raise FreerunError(f"--limit {args.limit} must be 1 or more")

    from freerun.reports.bisect import bisect_run

    directory = found if found.is_dir() else found.parent
    bisection = bisect_run(directory, args.metric, first=args.first, last=args.until, limit=args.limit)
    for line in describe_bisection(bisection, directory):
        print(harmless(line))  # parts of a user's reward are metrics, and may have any name
    return 0


def describe_bisection(found: "Bisection", directory: Path) -> Iterator[str]:
    """The findings, one per line, and the commands that show more."""
    if not found.is_found:
        unit = "evaluations" if found.metric == "held-out" else "steps"
        yield f"no collapse of {found.metric} in {found.num_points} {unit}"
        return
    if found.eval_fall is not None:
        yield _describe_evals(found.eval_fall)
    if found.fall is not None:
        yield _describe_fall("reward" if found.eval_fall is not None else found.metric, found.fall)
    if found.samplers:
        yield found.samplers
    first, last = found.steps[0], found.steps[-1]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    yield f"so it was done by {steps}"
    if found.companions:
        changed = ", ".join(f"{c.name} {c.before:.3g} → {c.after:.3g}" for c in found.companions)
        yield f"what else changed there: {changed}"
    yield f"the samples with the largest advantage x weight, and their share of {steps}:"
    for number, carrier in enumerate(found.carriers, 1):
        yield f"  {number}. {_describe_carrier(carrier)}"
    yield "look at them, and try other settings, such as a lower learning rate:"
    yield from (f"  {command}" for command in _commands(found, shlex.quote(str(directory))))


def _describe_evals(fall: "EvalFall") -> str:
    from freerun.events.accuracy import percent_within

    good, bad, best = (
        f"{percent_within(row.accuracy, row.accuracy_low, row.accuracy_high)} at version {row.version}"
        for row in (fall.last_good, fall.first_bad, fall.best)
    )
    since = "" if fall.best is fall.last_good else f" (best: {best})"
    return f"held-out fell from {good} to {bad}{since}, and stayed below the best: the intervals do not overlap"


def _describe_fall(metric: str, fall: "Fall") -> str:
    from freerun.reports.collapse import NUM_SHUFFLES

    return (
        f"{metric} left its level at step {fall.begin}: {fall.before:.3g} on average since step {fall.best}, then "
        f"{fall.after:.3g} to step {fall.end}; {fall.num_as_large} of {NUM_SHUFFLES:,} shuffles of these steps "
        "have such a fall"
    )


def _describe_carrier(carrier: "Carrier") -> str:
    from freerun.terminal.wording import printable

    row = carrier.row
    return (
        f"{carrier.share:.0%}  step {row.version}, prompt {row.ordinal}, sample {row.sample}: advantage "
        f"{row.advantage:+.2f}, weights up to {carrier.largest_weight:.2g}, reward {row.reward:+.3g}, "
        f'"{printable(row.completion, MAX_TEXT)}"'
    )


def _commands(found: "Bisection", run: str) -> Iterator[str]:
    first, last = found.steps[0], found.steps[-1]
    yield f"freerun show {run} --step {last} --order weight"
    if found.carriers:
        yield f"freerun show {run} --group {found.carriers[0].row.ordinal} --full"
    yield f"freerun replay {run} --from {first} --until {last}"
    if found.lr:
        lower = f"{found.lr / 4:.2g}"
        yield f"freerun replay {run} --from {first} --set train.lr={lower}"
        if first > 1:
            yield f"freerun fork {run} --at {first - 1} --run.name NAME --train.lr {lower}"


def _parser() -> Parser:
    description = "Find the step where a run collapsed, and the samples that carried it."
    usage = "RUN [--metric NAME] [--from N] [--until N] [--limit N]"
    parser = Parser("freerun bisect", description, EPILOG, usage=usage)
    parser.take("run", "RUN", EXPLANATION)
    metric = "held-out, reward, or any metric of the steps; default: held-out, else reward"
    parser.take("--metric", "NAME", metric, type=str, default="")
    parser.take("--from", "N", "the first step to look at", type=int, dest="first")
    parser.take("--until", "N", "the last step to look at", type=int)
    parser.take("--limit", "N", "samples to name; default: 5", type=int, default=5)
    return parser
