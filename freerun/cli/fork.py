"""`freerun fork`: a new run that continues from a version of another one, with live engines."""

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run

if TYPE_CHECKING:
    from freerun.replay.fork import ForkPlan

EPILOG = """\
The new run begins with the record of the other one up to version N, and continues like a resumed run: with the
settings of that version, and those that are given here. It starts from the checkpoint of version N; if there is
none, or it has no optimizer (checkpoint.keep_optimizer), the recorded batches up to N are trained again first. The
other run is not changed.

examples:
  freerun fork runs/times-tables --at 20 --run.name gentle --train.lr 1e-5
  freerun fork runs/times-tables --at 45 --run.name longer --train.num_steps 90
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)
    found = find_run(args.run)

    from freerun.cli.replay import show_difference, show_progress
    from freerun.replay.fork import make_fork, plan_fork

    plan = plan_fork(found if found.is_dir() else found.parent, version=args.at, overrides=overrides)
    _announce(plan)
    with show_progress() as on_progress:
        difference = make_fork(plan, on_progress=on_progress)
    if difference is not None:
        print(f"warning: version {difference.version} is not as recorded:")
        show_difference(difference)
    if plan.recipe.online.is_on:
        print("it is trained on live traffic; continue it with")
        print(f"  freerun serve {quote(str(plan.run.path))} --resume")
        return 0

    from freerun.session.train import run_training

    return run_training(plan.recipe, resume=True)


def _announce(plan: "ForkPlan") -> None:
    print(f"{plan.run.path}: {plan.story}")
    if plan.checkpoint is not None:
        print(f'it starts from the checkpoint "{plan.checkpoint.directory}"')
    elif plan.replay is not None:
        print(f"version {plan.version} is trained again from version {plan.replay.start}, {plan.replay.source}")
    for warning in plan.warnings:
        print(f"warning: {warning}")


def _parser() -> Parser:
    description = "Continue from a version of a run with other settings, as a new run."
    usage = "RUN --at N --run.name NAME [--section.key value ...]"
    parser = Parser("freerun fork", description, EPILOG, usage=usage)
    parser.take("run", "RUN", EXPLANATION)
    parser.take("--at", "N", "the version to continue from", type=int, required=True)
    return parser
