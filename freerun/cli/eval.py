"""`freerun eval`: measures a model directory or a run's checkpoint, and keeps every completion."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.errors import FreerunError
from freerun.session.evaluation_job import make_job, new_directory

EPILOG = """\
MODEL_OR_RUN is a model directory, a run (its newest checkpoint and its recipe), or an earlier evaluation, which
is only shown again.

TASK is a recipe (its data, sampling and grader), a built-in task, or a data file, all of which is evaluated.
A shipped recipe is named as in svamp, or as in times-tables.toml if a built-in task has the same name.
With a built-in task or a data file, all other settings are those of the run, or the defaults for a model
directory. Change any of them with --section.key value; "freerun train --help" lists the keys.

examples:
  freerun eval runs/times-tables
  freerun eval runs/times-tables --version best
  freerun eval runs/times-tables --version 20 --eval.num_samples 8 --k 1 4 8
  freerun eval models/smollm2 --task times-tables.toml --greedy
  freerun eval models/smollm2 --task svamp
  freerun eval models/smollm2 --task my.jsonl --sampling.temperature 0.6 --reward.grader number --show wrong
  freerun eval runs/times-tables/evals/NAME --show wrong
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)

    from freerun.evaluation.job import is_evaluation

    directory: Path = args.target
    if is_evaluation(directory):
        if overrides or args.task or args.greedy or args.version is not None:
            raise FreerunError(f'"{directory}" is an earlier evaluation; it takes only --k, --show and --json')
    else:
        job = make_job(
            args.target,
            args.task,
            overrides,
            version=args.version,
            ks=args.k,
            split=args.split,
            is_greedy=args.greedy,
        )
        directory = args.output or new_directory(args.target, job)

        from freerun.session.evaluate import run_eval

        run_eval(job, directory)
    return _report(directory, args)


def _report(directory: Path, args: argparse.Namespace) -> int:
    from freerun.evaluation.report import EvalReport

    report = EvalReport(directory, args.k)
    if args.json:
        print(report.as_json())
    else:
        for block in report.completions(args.show):
            print(block)
        print(report.describe())
    return 1 if report.is_empty else 0


def _parser() -> Parser:
    usage = (
        "MODEL_OR_RUN [--task TASK] [--version N] [--k K ...] [--greedy] [--split SPLIT]\n"
        "                    [--show WHICH] [--json] [--output DIR] [--section.key value ...]"
    )
    description = "Measure accuracy on held-out prompts, with 95 % intervals."
    parser = Parser("freerun eval", description, EPILOG, usage=usage)
    take, flag = parser.take, parser.flag
    take("target", "MODEL_OR_RUN", "model directory, run, or earlier evaluation")
    take("--task", "TASK", "recipe, built-in task or data file; default: the run's recipe", type=str, default="")
    parser.take_version()
    take("--k", "K", "report pass@K; default: 1 and all samples", type=int, nargs="+", default=[])
    flag("--greedy", "always take the most likely token: one completion per prompt")
    take("--split", "SPLIT", "held-out or training prompts; default: held-out", type=str, default="held-out")
    parser.add_argument("--show", choices=("wrong", "right", "all"), default="nothing",
                        help="print these completions")  # fmt: skip
    flag("--json", "print estimates and prompts as JSON instead")
    take("--output", "DIR", "where to write results; default: a new directory in evals/")
    return parser
