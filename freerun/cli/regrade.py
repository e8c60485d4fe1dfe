"""`freerun regrade`: which rewards of a run another grader would change, step by step, without generation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run

if TYPE_CHECKING:
    from freerun.replay.regrade import RegradedStep

EPILOG = """\
Nothing is trained and nothing is written: the completions are those in the run's store.

examples:
  freerun regrade runs/times-tables
  freerun regrade runs/times-tables --grader exact
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    found = find_run(args.run)

    from freerun.replay.regrade import regrade

    steps: list[RegradedStep] = []

    def show(step: "RegradedStep") -> None:
        steps.append(step)
        if step.num_changed or step.num_failed:
            failed = f", {step.num_failed} could not be graded" if step.num_failed else ""
            print(
                f"step {step.version}: {step.num_changed} of {step.num_graded} rewards change{failed}, "
                f"mean {step.recorded:.3g} → {step.regraded:.3g}"
            )

    regrade(found if found.is_dir() else found.parent, args.grader, on_step=show)
    num_changed, num_graded = sum(s.num_changed for s in steps), sum(s.num_graded for s in steps)
    print(f"{num_changed:,} of {num_graded:,} rewards change")
    return 0


def _parser() -> Parser:
    description = "Grade the completions that a run trained on again, and say which rewards change."
    parser = Parser("freerun regrade", description, EPILOG, usage="RUN [--grader NAME]")
    parser.take("run", "RUN", EXPLANATION)
    parser.take("--grader", "NAME", "a grader or module:function; default: the run's own", type=str, default="")
    return parser
