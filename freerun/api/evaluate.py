"""`freerun.evaluate`: what `freerun eval` does, with its results as values."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.api.anywhere import run_anywhere
from freerun.api.arguments import require_type
from freerun.config.recipe import Recipe
from freerun.evaluation.job import Split
from freerun.evaluation.report import EvalReport
from freerun.events.best import CheckpointVersion
from freerun.events.pass_at_k import Estimate
from freerun.events.reader import RunReader
from freerun.session.attachments import StopSwitch
from freerun.session.evaluate import run_eval
from freerun.session.evaluation_job import make_job, new_directory


@dataclass(frozen=True)
class EvaluationResult:
    """Estimates over the prompts, each with its 95 % interval."""

    accuracy: Estimate
    """pass@1: `value`, `low` and `high`; all nan if nothing could be graded."""
    pass_at: dict[int, Estimate]
    """The probability that one of k samples is correct, by k."""
    mean_reward: float
    num_prompts: int
    num_samples: int
    num_failed: int
    """Number of prompts that could not be graded."""
    directory: Path
    """Where everything is recorded; `freerun eval DIRECTORY` shows it."""

    def reader(self) -> RunReader:
        """A reader of every prompt and completion; close it, or use it in a `with`."""
        return RunReader(self.directory)


def evaluate(
    model_or_run: str | Path,
    task: Recipe | str | Path = "",
    *,
    version: CheckpointVersion | None = None,
    ks: Sequence[int] = (),
    split: Split = "held-out",
    greedy: bool = False,
    output: str | Path | None = None,
) -> EvaluationResult:
    """Evaluate a model directory, or a checkpoint of a run: the newest, that of `version`, or the "best".

    `task` is a recipe, the path or name of one, a built-in task or a data file; by default the run's own recipe.
    Results are written to `output`, by default to a new directory below the run or below `evals`.
    """
    require_type("model_or_run", model_or_run, (str, Path), "the path of a model directory or a run")
    require_type("task", task, (Recipe, str, Path), "a Recipe, a path or a name")
    if version != "best":
        require_type("version", version, (int, type(None)), 'the version of a checkpoint, or "best"')
    require_type("ks", ks, (list, tuple), "a list such as [1, 8]")
    for index, k in enumerate(ks):
        require_type(f"ks[{index}]", k, int, "integers")
    target = Path(model_or_run)
    what = task if isinstance(task, Recipe) else str(task)
    job = make_job(target, what, [], version=version, ks=ks, split=split, is_greedy=greedy)
    directory = Path(output) if output is not None else new_directory(target, job)
    stop = StopSwitch()
    try:
        run_anywhere(lambda: run_eval(job, directory, stop=stop), stop)
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    report = EvalReport(directory, ks)
    return EvaluationResult(
        accuracy=report.pass_at(1),
        pass_at={k: report.pass_at(k) for k in report.ks},
        mean_reward=report.mean_reward(),
        num_prompts=report.row.num_prompts,
        num_samples=report.row.num_samples,
        num_failed=report.row.num_failed,
        directory=directory,
    )
