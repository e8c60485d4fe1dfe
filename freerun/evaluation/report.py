"""What `freerun eval` prints, all of it read from the evaluation's store: estimates, problems, JSON."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import msgspec

from freerun.errors import ConfigError
from freerun.evaluation.job import EvalJob, read_job
from freerun.events.accuracy import percent
from freerun.events.events import ProblemResult
from freerun.events.pass_at_k import Estimate, estimate_pass_at_k
from freerun.events.reader import EvalCompletionRow, EvalRow, RunReader
from freerun.terminal.wording import count, printable, printable_block

Shown = Literal["nothing", "wrong", "right", "all"]
MAX_PROMPT_TAIL = 200
"""Characters of a prompt's end that are shown."""


class Report:
    """One recorded evaluation."""

    def __init__(self, directory: Path, ks: Sequence[int]) -> None:
        self._directory = directory
        self._job: EvalJob = read_job(directory)
        with RunReader(directory) as reader:
            self.row: EvalRow = reader.evals()[-1]
            self._problems: list[ProblemResult] = reader.eval_problems(self.row.version)
            self._completions: list[EvalCompletionRow] = reader.eval_completions(self.row.version)
        self.ks = tuple(ks) or default_ks(self.row.num_samples)
        check_ks(self.ks, self.row.num_samples)

    @property
    def is_empty(self) -> bool:
        """Whether not one problem could be graded."""
        return not any(problem.num_samples for problem in self._problems)

    def describe(self) -> str:
        """The table of estimates, what failed, and how to see more."""
        job, result = self._job, self.row
        version = f" (version {result.version})" if result.version else ""
        facts = [
            ("model", f"{job.model}{version}"),
            ("problems", f"{result.num_prompts} of the {job.num_available} {job.split} ones of {job.task}"),
            ("sampling", f"{_times(result.num_samples, 'sample')} each, {job.sampling_words}"),
            *self._estimates(),
            ("reward", "" if self.is_empty else f"{self.mean_reward():.3g} on average"),
            ("length", "" if self.is_empty else f"{result.mean_length:.1f} tokens on average"),
            ("failed", self._failed()),
            ("wrong", self._wrong()),
            ("recorded", f"freerun eval {shlex.quote(str(self._directory))} --show wrong"),
        ]
        return "\n".join(f"{name:<11}{printable_block(words)}" for name, words in facts if words)

    def completions(self, shown: Shown) -> Iterator[str]:
        """One block per problem that has completions of the kind asked for."""
        wanted = {"nothing": (), "wrong": (False,), "right": (True,), "all": (False, True)}[shown]
        by_ordinal = {problem.ordinal: problem for problem in self._problems}
        for ordinal, rows in groupby(self._completions, key=lambda row: row.ordinal):
            chosen = [row for row in rows if row.is_correct in wanted]
            if chosen:
                yield _block(by_ordinal[ordinal], chosen)

    def as_json(self) -> str:
        """Everything but the completions, which the store has."""
        job, result = self._job, self.row
        passes = {str(k): self.pass_at(k)._asdict() for k in self.ks}
        body = {
            "model": job.model,
            "version": result.version,
            "task": job.task,
            "split": job.split,
            "num_available": job.num_available,
            "is_greedy": job.is_greedy,
            "temperature": 0.0 if job.is_greedy else job.recipe.sampling.temperature,
            "num_problems": result.num_prompts,
            "num_samples": result.num_samples,
            "num_failed": result.num_failed,
            "pass_at": passes,
            "mean_reward": self.mean_reward(),
            "mean_length": result.mean_length,
            "directory": str(self._directory),
            "problems": msgspec.to_builtins(self._problems),
        }
        return json.dumps(_without_nan(body), indent=2)

    def pass_at(self, k: int) -> Estimate:
        """The chance that one of k samples is right, with its interval."""
        counts = [(p.num_samples, p.num_correct) for p in self._problems if p.num_samples]
        return estimate_pass_at_k(counts, k)

    def _estimates(self) -> Iterator[tuple[str, str]]:
        if self.is_empty:
            return
        for k in self.ks:
            value, low, high = self.pass_at(k)
            also = f"   (the same as mean@{self.row.num_samples})" if k == 1 < self.row.num_samples else ""
            yield f"pass@{k}", f"{percent(value)}  95 % interval [{percent(low)}, {percent(high)}]{also}"

    def mean_reward(self) -> float:
        """Over the problems that could be graded; nan if there are none."""
        rewards = [problem.mean_reward for problem in self._problems if problem.num_samples]
        return sum(rewards) / len(rewards) if rewards else math.nan

    def _failed(self) -> str:
        failed = [problem for problem in self._problems if not problem.num_samples]
        if not failed:
            return ""
        first = f"the first, {failed[0].key}: {failed[0].failure}"
        return f"{_times(len(failed), 'problem')} could not be graded; {first}"

    def _wrong(self) -> str:
        graded = [problem for problem in self._problems if problem.num_samples]
        num_never = sum(problem.num_correct == 0 for problem in graded)
        num_mixed = sum(0 < problem.num_correct < problem.num_samples for problem in graded)
        mixed = f", {num_mixed} right in some samples only" if num_mixed else ""
        return f"{_times(num_never, 'problem')} never right{mixed}" if num_never or num_mixed else ""


def default_ks(num_samples: int) -> tuple[int, ...]:
    """One sample, and all there are."""
    return (1,) if num_samples == 1 else (1, num_samples)


def check_ks(ks: Sequence[int], num_samples: int) -> None:
    """Refuse a pass@k that the samples cannot tell."""
    for k in ks:
        if not 1 <= k <= num_samples:
            raise ConfigError(
                f"--k {k} must lie between 1 and the {num_samples} samples of a problem; "
                "--eval.num_samples N draws more"
            )


def _block(problem: ProblemResult, rows: Sequence[EvalCompletionRow]) -> str:
    """The problem, then a line for each of its completions."""
    header = f"{problem.key}  {problem.num_correct} of {problem.num_samples} right, answer {rows[0].answer}"
    lines = [printable(header), f"  prompt {printable(rows[0].prompt[-MAX_PROMPT_TAIL:])}"]
    for row in rows:
        verdict = "right " if row.is_correct else "wrong "
        cut_off = " [cut off]" if row.finish_reason == "length" else ""
        lines.append(f"  {verdict} {printable(row.completion)}{cut_off}")
    return "\n".join(lines)


def _times(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _without_nan(value: Any) -> Any:
    """JSON has no not-a-number: null stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list) else value
