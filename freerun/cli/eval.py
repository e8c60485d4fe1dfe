"""`freerun eval`: accuracy of a model directory or of a run's checkpoint, recorded so that it can be looked at."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser, split_overrides
from freerun.config.load import key_types, load_recipe, make_recipe
from freerun.config.recipe import Recipe
from freerun.config.shipped import shipped_recipes
from freerun.errors import CheckpointError, ConfigError, FreerunError, ModelError
from freerun.model.adapter_directory import is_adapter
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory
from freerun.session.input_files import check_data_files

if TYPE_CHECKING:
    from freerun.controller.checkpoint import Checkpoint
    from freerun.evaluation.job import EvalJob

EPILOG = """\
MODEL_OR_RUN is a model directory, a run (its newest checkpoint, its own recipe), or an evaluation made before,
which is only shown again.

TASK is a recipe (its data, sampling and grader), a built-in task, or a data file, which is evaluated whole.
A shipped recipe is named as in svamp, or as in times-tables.toml if a built-in task has the same name.
Beside a built-in task or a data file, everything else is the run's own, or the defaults for a model directory:
say what differs with --section.key value.

examples:
  freerun eval runs/times-tables
  freerun eval runs/times-tables --version 20 --eval.num_samples 8 --k 1 4 8
  freerun eval models/smollm2 --task times-tables.toml --greedy
  freerun eval models/smollm2 --task svamp
  freerun eval models/smollm2 --task my.jsonl --sampling.temperature 0.6 --reward.grader number --show wrong
  freerun eval runs/times-tables/evals/NAME --show wrong
"""


def run(arguments: Sequence[str]) -> int:
    own, overrides = split_overrides(arguments)
    args = _parser().parse_own(own)

    from freerun.evaluation.job import is_evaluation

    directory: Path = args.target
    if is_evaluation(directory):
        if overrides or args.task or args.greedy or args.version is not None:
            raise FreerunError(f'"{directory}" is an evaluation made before; it takes only --k, --show and --json')
    else:
        job = make_job(args, overrides)
        directory = args.output or new_directory(args.target, job)

        from freerun.session.evaluate import run_eval

        run_eval(job, directory)
    return _report(directory, args)


def _report(directory: Path, args: argparse.Namespace) -> int:
    from freerun.evaluation.report import Report

    report = Report(directory, args.k)
    if args.json:
        print(report.as_json())
    else:
        for block in report.completions(args.show):
            print(block)
        print(report.describe())
    return 1 if report.is_empty else 0


def make_job(args: argparse.Namespace, overrides: Sequence[str]) -> EvalJob:
    """Everything that decides the evaluation, checked before anything starts."""
    from freerun.evaluation.job import EvalJob
    from freerun.evaluation.report import check_ks

    model, version = find_model(args.target, args.version)
    own_recipe = args.target / "config.toml"
    if args.greedy:  # all samples would be the same
        overrides = [*overrides, "--eval.num_samples", "1"]
    recipe = find_recipe(args.task, own_recipe if own_recipe.is_file() else None, overrides)
    check_data_files(recipe)
    check_ks(args.k, recipe.eval.num_samples)
    rows = recipe.data.path or recipe.run.name  # a mixture has no path of its own
    task = args.task or (rows if recipe.data.reads_rows else recipe.data.task)
    return EvalJob(recipe, str(model), version, Path(task).name, args.split, args.greedy)


def find_model(target: Path, version: int | None = None) -> tuple[Path, int]:
    """The model directory itself, or that of a run's checkpoint: the newest, or the one of `version`."""
    target = Path(local_directory(str(target)))
    if (target / "config.json").is_file() or is_adapter(target):
        if version is not None:
            raise CheckpointError(f'"{target}" is a model, not a run: it has no version {version}')
        _verify_own_checkpoint(target)
        return target, 0
    if is_hub_name(str(target)):
        raise ModelError(f'"{target}" is no directory here, and {how_to_fetch(str(target))}')
    if not (target / "config.toml").is_file():
        raise ModelError(
            f'"{target}" is neither a model directory (no config.json) nor a run (no config.toml); '
            "name one, such as models/smollm2 or runs/times-tables"
        )
    from freerun.controller.checkpoint import read_checkpoint

    checkpoints = target / "checkpoints"
    if version is None:
        checkpoint = _newest_whole(target, checkpoints)
    elif (checkpoints / f"step-{version}").is_dir():
        checkpoint = read_checkpoint(checkpoints / f"step-{version}")
    else:
        kept = ", ".join(sorted(path.name for path in checkpoints.glob("step-*"))) or "none"
        raise CheckpointError(f'the run "{target}" has no checkpoint of version {version}; it keeps {kept}')
    return checkpoint.model_directory, checkpoint.state.version


def _newest_whole(run: Path, checkpoints: Path) -> Checkpoint:
    """The run's newest whole checkpoint; says so if newer ones are damaged."""
    from freerun.controller.checkpoint import find_checkpoint

    found = find_checkpoint(checkpoints)
    if found.checkpoint is None:
        raise CheckpointError(f'the run "{run}" has no checkpoint yet (no checkpoints/step-*)')
    for damage in found.damage:
        print(f"freerun: {damage}; using {found.checkpoint.directory.name} instead", file=sys.stderr)
    return found.checkpoint


def _verify_own_checkpoint(model: Path) -> None:
    """The model of a checkpoint has a manifest above it: refuse files that do not match it."""
    from freerun.controller.manifest import MANIFEST_FILE, verify

    checkpoint = model.resolve().parent
    if model.resolve().name == "model" and (checkpoint / MANIFEST_FILE).exists():
        verify(checkpoint)


def find_recipe(task: str, own_recipe: Path | None, overrides: Sequence[str]) -> Recipe:
    """The recipe that TASK names, or the run's own (without one: the defaults) with the data that TASK names."""
    if _is_recipe(task):
        return load_recipe(Path(task), overrides)
    if not task and own_recipe is None:
        raise ConfigError("a model directory is no run: say what to evaluate it on with --task TASK")
    data = [*_data_overrides(task), *overrides]
    if own_recipe is None:
        return make_recipe(Path(task).stem, data)
    # What the run says of its own data means nothing for other data; only how long a prompt may be stays true.
    of_own_data = [key for key in key_types() if key.startswith("data.") and key != "data.max_prompt_tokens"]
    return load_recipe(own_recipe, data, without=of_own_data if task else ())


def _is_recipe(task: str) -> bool:
    """Whether TASK is a recipe; a name that a shipped recipe shares with a built-in task is the task."""
    from freerun.data.tasks import is_built_in

    return task.endswith(".toml") or (
        task in shipped_recipes() and not is_built_in(task) and not Path(task).is_file()
    )


def _data_overrides(task: str) -> list[str]:
    if not task:
        return []
    if Path(task).is_file():
        return ["--data.task", "file", "--data.path", task, "--data.held_out_path", task]
    return ["--data.task", task]


def new_directory(target: Path, job: EvalJob) -> Path:
    """A name that says what and when: below the run, or below evals/ for a model directory."""
    is_run = (target / "config.toml").is_file()
    subject = f"step-{job.version}" if is_run else target.resolve().name
    name = f"{subject}-{Path(job.task).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return (target / "evals" if is_run else Path("evals")) / name


def _parser() -> Parser:
    parser = Parser("freerun eval", "Measure accuracy on held-out problems, with 95 % intervals.", EPILOG)
    parser.usage = (
        "freerun eval MODEL_OR_RUN [--task TASK] [--version N] [--k K ...] [--greedy] [--split SPLIT]\n"
        "                    [--show WHICH] [--json] [--output DIR] [--section.key value ...]"
    )
    add = parser.add_argument
    add("target", metavar="MODEL_OR_RUN", type=Path, help="model directory, run, or evaluation made before")
    add("--task", metavar="TASK", default="", help="recipe, built-in task or data file; a run has its own recipe")
    add("--version", metavar="N", type=int, help="the run's checkpoint of this version; the newest by default")
    add("--k", metavar="K", type=int, nargs="+", default=[], help="report pass@K; by default 1 and all samples")
    add("--greedy", action="store_true", help="take the likeliest token at every step: one completion a problem")
    add(
        "--split", choices=("held-out", "training"), default="held-out", help="which problems; held-out by default"
    )
    add("--show", metavar="WHICH", choices=("wrong", "right", "all"), default="nothing",
        help="print these completions: wrong, right or all")  # fmt: skip
    add("--json", action="store_true", help="print estimates and problems as JSON instead")
    add(
        "--output",
        metavar="DIR",
        type=Path,
        help="where results are kept; by default a new directory below evals/",
    )
    return parser
