"""Answers that a grader could not read, found before a run begins instead of as failed grades in its middle.

    number          a number in it
    code            a Python program that asks for a function
    reasoning-gym   the JSON of an entry that names its dataset

What "math" cannot read only math-verify knows, which takes too long for all answers; "exact", "regex" and "format"
can use any text; what a function of the user's needs is its own business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from freerun.config.reward import RewardConfig
from freerun.errors import DataError
from freerun.reward.asked_names import asked_names
from freerun.reward.graders import require_number
from freerun.reward.program import prompt_code
from freerun.types import Prompt

NUM_REPORTED = 5


def check_answers(config: RewardConfig, prompts: Iterable[Prompt]) -> None:
    """Raise with the first prompts whose answers one of the graders cannot read."""
    checks = [(part.grader, _CHECKS[part.grader]) for part in config.parts if part.grader in _CHECKS]
    if not checks:
        return
    complaints: dict[str, str] = {}
    num_prompts = 0
    for prompt in prompts:
        num_prompts += 1
        for grader, check in checks:
            try:
                check(prompt)
            except ValueError as error:
                complaints.setdefault(prompt.key, f'{prompt.key}: the grader "{grader}" cannot grade it: {error}')
    if complaints:
        lines = list(complaints.values())[:NUM_REPORTED]
        lines.append(
            f"{len(complaints)} of {num_prompts} answers cannot be read; mend them or change reward.grader"
        )
        raise DataError("\n".join(lines))


def _check_number(prompt: Prompt) -> None:
    require_number(prompt.answer)


def _check_code(prompt: Prompt) -> None:
    asked_names(prompt.answer, known=prompt_code(prompt.text).helpers)


def _check_entry(prompt: Prompt) -> None:
    try:
        entry = json.loads(prompt.answer)
        is_entry = isinstance(entry["metadata"]["source_dataset"], str) and "answer" in entry
    except (ValueError, TypeError, KeyError, RecursionError):
        is_entry = False
    if not is_entry:
        raise ValueError("the answer is not the JSON of a reasoning_gym entry")


_CHECKS: dict[str, Callable[[Prompt], None]] = {
    "number": _check_number,
    "code": _check_code,
    "reasoning-gym": _check_entry,
}
