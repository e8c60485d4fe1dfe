"""The output of `freerun eval`, read from the evaluation's store: estimates, prompts, JSON."""

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
from freerun.events.events import EvalRow, PromptResult
from freerun.events.pass_at_k import Estimate, estimate_pass_at_k
from freerun.events.reader import RunReader
from freerun.events.schema import EvalCompletionRow
from freerun.terminal.wording import count, printable, printable_block

Shown = Literal["nothing", "wrong", "right", "all"]
MAX_PROMPT_TAIL = 200
"""Characters shown of a prompt's end."""


class EvalReport:
    """One recorded evaluation."""

    def __init__(self, directory: Path, ks: Sequence[int]) -> None:
        self._directory = directory
        self._job: EvalJob = read_job(directory)
        with RunReader(directory) as reader:
            self.row: EvalRow = reader.evals()[-1]
            self._prompts: list[PromptResult] = reader.eval_prompts(self.row.version)
            self._completions: list[EvalCompletionRow] = reader.eval_completions(self.row.version)
        self.ks = tuple(ks) or default_ks(self.row.num_samples)
        check_ks(self.ks, self.row.num_samples)

    @property
    def is_empty(self) -> bool:
        """Whether no prompt could be graded."""
        return not any(prompt.num_samples for prompt in self._prompts)

    def describe(self) -> str:
        """The table of estimates, the failures, and how to see more."""
        job, result = self._job, self.row
        version = f" (version {result.version})" if result.version else ""
        facts = [
            ("model", f"{job.model}{version}"),
            ("prompts", f"{result.num_prompts} of {job.num_available} {job.split} ({job.task})"),
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
        """One block per prompt that has completions of the requested kind."""
        wanted = {"nothing": (), "wrong": (False,), "right": (True,), "all": (False, True)}[shown]
        by_ordinal = {prompt.ordinal: prompt for prompt in self._prompts}
        for ordinal, rows in groupby(self._completions, key=lambda row: row.ordinal):
            chosen = [row for row in rows if row.is_correct in wanted]
            if chosen:
                yield _block(by_ordinal[ordinal], chosen)

    def as_json(self) -> str:
        """Everything except the completions, which are in the store."""
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
            "num_prompts": result.num_prompts,
            "num_samples": result.num_samples,
            "num_failed": result.num_failed,
            "pass_at": passes,
            "mean_reward": self.mean_reward(),
            "mean_length": result.mean_length,
            "directory": str(self._directory),
            "prompts": msgspec.to_builtins(self._prompts),
        }
        return json.dumps(_without_nan(body), indent=2)

    def pass_at(self, k: int) -> Estimate:
        """The probability that one of k samples is correct, with its interval."""
        counts = [(p.num_samples, p.num_correct) for p in self._prompts if p.num_samples]
        return estimate_pass_at_k(counts, k)

    def _estimates(self) -> Iterator[tuple[str, str]]:
        if self.is_empty:
            return
        for k in self.ks:
            value, low, high = self.pass_at(k)
            also = f"   (the same as mean@{self.row.num_samples})" if k == 1 < self.row.num_samples else ""
            yield f"pass@{k}", f"{percent(value)}  95 % interval [{percent(low)}, {percent(high)}]{also}"

    def mean_reward(self) -> float:
        """Mean over the prompts that could be graded; nan if there are none."""
        rewards = [prompt.mean_reward for prompt in self._prompts if prompt.num_samples]
        return sum(rewards) / len(rewards) if rewards else math.nan

    def _failed(self) -> str:
        failed = [prompt for prompt in self._prompts if not prompt.num_samples]
        if not failed:
            return ""
        first = f"the first, {failed[0].key}: {failed[0].failure}"
        return f"{_times(len(failed), 'prompt')} could not be graded; {first}"

    def _wrong(self) -> str:
        graded = [prompt for prompt in self._prompts if prompt.num_samples]
        num_never = sum(prompt.num_correct == 0 for prompt in graded)
        num_mixed = sum(0 < prompt.num_correct < prompt.num_samples for prompt in graded)
        mixed = f", {num_mixed} right in some samples only" if num_mixed else ""
        return f"{_times(num_never, 'prompt')} never right{mixed}" if num_never or num_mixed else ""


def default_ks(num_samples: int) -> tuple[int, ...]:
    """pass@1 and pass@(all samples)."""
    return (1,) if num_samples == 1 else (1, num_samples)


def check_ks(ks: Sequence[int], num_samples: int) -> None:
    """Raise for a pass@k with k larger than the number of samples."""
    for k in ks:
        if not 1 <= k <= num_samples:
            raise ConfigError(
                f"k = {k} must lie between 1 and the {num_samples} samples of a prompt; raise eval.num_samples"
            )


def _block(prompt: PromptResult, rows: Sequence[EvalCompletionRow]) -> str:
    """The prompt, then one line per completion."""
    header = f"{prompt.key}  {prompt.num_correct} of {prompt.num_samples} right, answer {rows[0].answer}"
    lines = [printable(header), f"  prompt {printable(rows[0].prompt[-MAX_PROMPT_TAIL:])}"]
    for row in rows:
        # A session in several sequences has several rows but one verdict.
        verdict = "      " if row.part else "right " if row.is_correct else "wrong "
        cut_off = " [cut off]" if row.finish_reason == "length" else ""
        lines.append(f"  {verdict} {printable(row.completion)}{cut_off}")
    return "\n".join(lines)


def _times(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _without_nan(value: Any) -> Any:
    """The value with null in place of NaN, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list) else value
