"""Compares evaluations, paired by prompt: which prompts got better or worse, and how certain the difference is.

The first evaluation is the baseline of the others. All must have used the same prompts of the same split. The
interval of the difference is explained in `events/paired.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.errors import FreerunError
from freerun.evaluation.job import EvalJob, read_job
from freerun.events.accuracy import percent
from freerun.events.events import PromptResult
from freerun.events.paired import paired_interval
from freerun.events.pass_at_k import estimate_pass_at_k
from freerun.events.reader import RunReader
from freerun.reports.tables import CSV_FILE, TABLE_FILE, points, with_interval, write_csv, write_table

EVALUATION_COLUMNS = ("evaluation", "model", "prompts", "samples", "accuracy", "difference", "better", "worse")

EVALUATION_CAPTION = """
accuracy: pass@1 with its 95 % interval over prompts. difference: from the first evaluation, in percentage points,
paired by prompt, with its 95 % interval over prompts. better, worse: prompts with a larger or smaller share of
right samples than in the first.
"""


@dataclass(frozen=True)
class EvaluationRecord:
    """A recorded evaluation."""

    path: Path
    job: EvalJob
    prompts: dict[str, PromptResult]
    """Results by key, including failed prompts."""
    answers: dict[str, str]
    """Answers by key: two files may use the same key for different prompts."""

    def shares(self) -> dict[str, float]:
        """The share of correct samples of each graded prompt."""
        return {key: p.num_correct / p.num_samples for key, p in self.prompts.items() if p.num_samples}


def read_evaluations(paths: Sequence[Path]) -> list[EvaluationRecord]:
    """Read evaluations that can be compared with the first of them."""
    evaluations = [_read(path) for path in paths]
    for other in evaluations[1:]:
        _check_comparable(evaluations[0], other)
    return evaluations


def _read(path: Path) -> EvaluationRecord:
    with RunReader(path) as reader:
        version = reader.evals()[-1].version
        prompts = {prompt.key: prompt for prompt in reader.eval_prompts(version)}
        answers = {row.key: row.answer for row in reader.eval_completions(version)}
    return EvaluationRecord(path, read_job(path), prompts, answers)


def _check_comparable(first: EvaluationRecord, other: EvaluationRecord) -> None:
    pair = f'"{other.path}" cannot be compared with "{first.path}"'
    if first.job.split != other.job.split:
        raise FreerunError(
            f"{pair}: one asked {other.job.split} prompts, the other {first.job.split} ones; use the same --split"
        )
    if first.prompts.keys() != other.prompts.keys():
        num_shared = len(first.prompts.keys() & other.prompts.keys())
        raise FreerunError(
            f"{pair}: they asked {len(other.prompts)} and {len(first.prompts)} prompts ({other.job.task} and "
            f"{first.job.task}) and share {num_shared}; evaluate both with the same --task and --eval.num_prompts"
        )
    for key, answer in first.answers.items():
        if other.answers.get(key, answer) != answer:
            raise FreerunError(
                f"{pair}: the prompt {key} has another answer there; evaluate both on the same data"
            )


def changes(first: EvaluationRecord, other: EvaluationRecord) -> list[float]:
    """The change in the share of correct samples, for each prompt that both graded."""
    before, after = first.shares(), other.shares()
    return [after[key] - before[key] for key in before if key in after]


def evaluation_rows(evaluations: Sequence[EvaluationRecord]) -> list[list[str]]:
    """The table cells under `EVALUATION_COLUMNS`."""
    first, rows = evaluations[0], []
    for each in evaluations:
        graded = [(p.num_samples, p.num_correct) for p in each.prompts.values() if p.num_samples]
        paired = changes(first, each)
        interval = paired_interval(paired, min(e.job.recipe.eval.num_samples for e in (first, each)))
        change = [
            with_interval(interval, points),
            f"{sum(c > 0 for c in paired)}",
            f"{sum(c < 0 for c in paired)}",
        ]
        rows.append(
            [
                str(each.path),
                each.job.model,
                f"{len(graded)}",
                f"{each.job.recipe.eval.num_samples}",
                with_interval(estimate_pass_at_k(graded, 1), percent),
                *(["-"] * 3 if each is first else change),
            ]
        )
    return rows


def write_evaluations(evaluations: Sequence[EvaluationRecord], directory: Path) -> None:
    """Write the table, and the share of correct samples of every prompt."""
    directory.mkdir(parents=True, exist_ok=True)
    rows, notes = evaluation_rows(evaluations), evaluation_notes(evaluations)
    write_table(directory / TABLE_FILE, EVALUATION_COLUMNS, rows, EVALUATION_CAPTION, notes)
    columns = [each.shares() for each in evaluations]
    lines = [(key, *(shares.get(key, math.nan) for shares in columns)) for key in evaluations[0].prompts]
    write_csv(directory / CSV_FILE, ("prompt", *(str(each.path) for each in evaluations)), lines)


def evaluation_notes(evaluations: Sequence[EvaluationRecord]) -> list[str]:
    """Differences other than the model, and prompts that could not be graded."""
    first, found = evaluations[0], []
    for each in evaluations:
        failed = sum(not prompt.num_samples for prompt in each.prompts.values())
        found += [f"{each.path}: {failed} prompts could not be graded and are not paired"] if failed else []
        if each.job.sampling_words != first.job.sampling_words:
            found.append(f"{each.path}: sampled with {each.job.sampling_words}, not {first.job.sampling_words}")
        if each.job.recipe.reward != first.job.recipe.reward:
            found.append(f"{each.path}: graded with other settings of [reward]")
    return found
