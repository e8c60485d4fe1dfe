"""Shows two prompts as the model will see them, and tries the grader on reference answers: part of the plan.

A template that hides the question, or a grader that cannot find the answer, looks like a model that learns
nothing. The reference answer is graded as if it were a completion. Where an answer is not a completion (unit
tests, or an entry of reasoning-gym), its solved form is graded instead, if the data has one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from freerun.data.mixture import PromptStream
from freerun.data.tokenizer import Tokenizer
from freerun.protocols import Grader
from freerun.types import Completion, Grade, GradeFailed, Prompt

NUM_SHOWN = 2
NUM_TRIED = 8
_MAX_CHARACTERS = 1200
_NUM_ANSWER_CHARACTERS = 120


@dataclass(frozen=True)
class Trial:
    """A prompt, a completion that should be correct, and the grade it got."""

    prompt: Prompt
    completion: str
    grade: Grade | None
    """None if the data contains no completion that a model could have written."""

    @property
    def is_right(self) -> bool:
        return self.grade is None or (not isinstance(self.grade, GradeFailed) and self.grade.is_correct)


async def try_references(
    source: PromptStream, tokenizer: Tokenizer, grader: Grader | None, *, default_grader: str
) -> list[Trial]:
    """Grade the reference answers of the run's first prompts; without a grader, only show them."""
    trials = []
    for ordinal in range(min(NUM_TRIED if grader else NUM_SHOWN, source.epoch_size)):
        prompt = source.at(ordinal)
        completion = _solved(prompt, source, prompt.grader or default_grader)
        grade = None
        if grader is not None and completion:
            token_ids = tokenizer.encode(completion, add_special_tokens=False)
            grade = await grader.grade(prompt, _as_completion(completion, token_ids))
        trials.append(Trial(prompt, completion, grade))
        if isinstance(grade, GradeFailed):
            break  # it may have taken all of reward.timeout_seconds
    return trials


def describe_trials(trials: Sequence[Trial]) -> list[str]:
    """The first prompts with their answers and rewards, and a warning if an answer is not graded correct."""
    lines = []
    for trial in trials[:NUM_SHOWN]:
        lines.append(f"prompt {_shown(trial.prompt.key)}, as the model will see it:")
        lines += [f"  | {_shown(line)}" for line in _cut(trial.prompt.text).split("\n")]
        lines.append(f"  answer: {_cut_line(trial.prompt.answer)}; {_outcome(trial)}")
    return lines


def trial_warnings(trials: Sequence[Trial]) -> list[str]:
    wrong = [trial for trial in trials if not trial.is_right]
    if not wrong:
        return []
    what = (
        f"warning: the grader does not find the reference answer right for {len(wrong)} of {len(trials)} prompts"
    )
    first = f"{_shown(wrong[0].prompt.key)}: {_outcome(wrong[0])}"
    return [f"{what} ({first}); check reward.grader, data.answer and data.answer_after"]


def _outcome(trial: Trial) -> str:
    match trial.grade:
        case None:
            return "not graded"
        case GradeFailed(reason=reason):
            return f"grading it failed: {_cut_line(reason.strip().splitlines()[-1])}"
        case reward:
            what = "it" if trial.completion == trial.prompt.answer else "its solution"
            return f"the grader gives {what} {reward.value:g}, {'right' if reward.is_correct else 'not right'}"


def _solved(prompt: Prompt, source: PromptStream, grader: str) -> str:
    """What a model should have written; empty if the data does not contain it."""
    prompts = source.prompts()
    of_task = next((p for p in prompts.training if p.answer == prompt.answer and p.text in prompt.text), None)
    if of_task is not None and of_task.shot:
        return of_task.shot
    if "reasoning-gym" in grader:
        return str(json.loads(prompt.answer)["answer"])
    return "" if "code" in grader else prompt.answer


def _as_completion(text: str, token_ids: np.ndarray) -> Completion:
    logprobs = np.zeros(len(token_ids), np.float32)
    return Completion(token_ids=token_ids, logprobs=logprobs, spans=(), finish_reason="stop", text=text)


def _cut(text: str) -> str:
    """The end of a long prompt, which contains the question."""
    return text if len(text) <= _MAX_CHARACTERS else f"... {text[-_MAX_CHARACTERS:]}"


def _cut_line(text: str) -> str:
    line = _shown(text)
    return line if len(line) <= _NUM_ANSWER_CHARACTERS else f"{line[:_NUM_ANSWER_CHARACTERS]} ..."


def _shown(text: str) -> str:
    """The text without characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
