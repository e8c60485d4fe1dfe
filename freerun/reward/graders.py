"""Graders by name: functions that judge one completion's text.

    number   the last number of the completion equals the answer's number
    exact    the completion is the answer, ignoring whitespace around both
    regex    the first group of `reward.pattern`'s first match is the answer, ignoring whitespace
    math     the completion's final expression equals the answer mathematically (math-verify)
    code     the completion is a program that passes the answer's tests, in a sandbox
    format   the whole completion matches `reward.format_pattern`, ignoring whitespace around it
    reasoning-gym
             what the dataset of the answer, a reasoning_gym entry as JSON, gives the completion
    m:f      the user's function f of module m, called with what its parameters ask for (`user_call.py`)

A grader returns a verdict (`verdict.py`), and raises if it cannot judge: a reference answer without a number is a
failed grade, not a wrong completion. A completion without anything usable is wrong, not a failure.

Nothing here limits time or survives hostile code: that is the pool's job.
"""

import importlib
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from freerun.config.reward import RewardConfig, with_grader
from freerun.config.user_code import is_user_code, split_name
from freerun.config.values import did_you_mean
from freerun.errors import ConfigError, DataError
from freerun.reward.code import check_absences, check_tests, code_grader
from freerun.reward.last_number import Ratio, last_number
from freerun.reward.reasoning_gym_entry import check_entry, check_installed, reasoning_gym_grader
from freerun.reward.user_call import GRADER_SETTING
from freerun.reward.user_function import import_function
from freerun.reward.verdict import GraderFunction, LoadedGrader, of_text
from freerun.types import Prompt

CALLERS_MODULE = "__main__"
"""Module of a reward function that exists only in the program that calls `freerun.train`."""
NUM_REPORTED = 5
"""Number of prompts that an error names."""


def grade_number(prompt: str, completion: str, answer: str) -> bool:
    """Whether the completion's last number equals the answer's, by value: 3.0 is 3, 1,234 is 1234.

    The last number counts because reasoning comes before the result. A model that continues after its answer is
    judged by its last number: the text of a completion that ended at a stop string includes the whole last
    token, which may reach beyond the string. ` 42\\n` is 42; ` 42\\n7 * 8` is 8.
    """
    expected = require_number(answer)
    found = last_number(completion)
    return found is not None and found.is_equal_to(expected)


def require_number(answer: str) -> Ratio:
    number = last_number(answer)
    if number is None or not number.denominator:
        raise ValueError(f"the answer {answer!r} holds no number")
    return number


def grade_exact(prompt: str, completion: str, answer: str) -> bool:
    return completion.strip() == answer.strip()


def _regex_grader(config: RewardConfig) -> GraderFunction:
    compiled = _compiled("pattern", config.pattern)
    if compiled.groups == 0:
        raise ConfigError(
            f'config: reward.pattern "{config.pattern}" has no group; put parentheses around the part that is the '
            "answer"
        )

    def grade_regex(prompt: str, completion: str, answer: str) -> bool:
        match = compiled.search(completion)
        return match is not None and match[1] is not None and match[1].strip() == answer.strip()

    return grade_regex


def _math_grader(config: RewardConfig) -> GraderFunction:
    # Imported only when used: sympy takes half a second.
    math_verify = importlib.import_module("math_verify")
    # math-verify's timeouts use signal.alarm, which fails outside the main thread and cannot stop a loop in C; in
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # else it warns that they are off

    def parsed(text: str) -> list[Any]:
        return list(math_verify.parse(_with_ascii_digits(text), parsing_timeout=None, raise_on_error=True))

    def are_equal(expected: list[Any], found: list[Any]) -> bool:
        return bool(math_verify.verify(expected, found, timeout_seconds=None, raise_on_error=True))

    def grade_math(prompt: str, completion: str, answer: str) -> bool:
        # Bare LaTeX is only recognised between delimiters: without them 3\sqrt{2} would be read as 3.
        is_delimited = any(mark in answer for mark in ("$", r"\boxed", r"\(", r"\["))
        try:
            expected = parsed(answer if is_delimited else f"${answer}$")
        except ValueError as error:
            raise ValueError(f"the answer {answer!r} cannot be read as mathematics") from error
        if all(isinstance(expression, str) for expression in expected):
            raise ValueError(f"the answer {answer!r} cannot be read as mathematics")
        try:
            return are_equal(expected, parsed(completion))
        except MemoryError:
            raise  # the machine's fault as much as the completion's
        except Exception as error:
            # For example a number of more than 4,300 digits. If the answer can be compared, the completion is
            # wrong.
            if not are_equal(expected, expected):
                raise
            print(f"math: wrong: cannot be read: {error!r:.200}")
            return False

    return grade_math


def _with_ascii_digits(text: str) -> str:
    """The digits of all scripts as 0 to 9: math-verify finds the others, but cannot read them."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)


def _format_grader(config: RewardConfig) -> GraderFunction:
    compiled = _compiled("format_pattern", config.format_pattern)
    return lambda prompt, completion, answer: compiled.fullmatch(completion.strip()) is not None


@dataclass(frozen=True)
class BuiltInGrader:
    make: Callable[[RewardConfig], GraderFunction]
    check: Callable[[RewardConfig], object] = lambda config: None
    """Raises `ConfigError` for what can be refused before a process starts."""
    check_answer: Callable[[Prompt], object] | None = None
    """Raises `ValueError` for an answer that the grader cannot read. What "math" cannot read only math-verify
    knows, which is too slow for all answers; "exact", "regex" and "format" can use any text."""


_BUILT_IN = {
    "number": BuiltInGrader(
        lambda config: grade_number, check_answer=lambda prompt: require_number(prompt.answer)
    ),
    "exact": BuiltInGrader(lambda config: grade_exact),
    "regex": BuiltInGrader(_regex_grader, _regex_grader),
    "math": BuiltInGrader(_math_grader),
    "format": BuiltInGrader(_format_grader, _format_grader),
    "reasoning-gym": BuiltInGrader(reasoning_gym_grader, lambda config: check_installed(), check_entry),
    "code": BuiltInGrader(code_grader, check_absences, check_tests),
}


def check_graders(config: RewardConfig) -> None:
    """Refuse what can be refused without running the user's code; starting the pool checks the rest."""
    for _, name in config.parts:
        if is_user_code(name):
            module, _ = split_name(name, setting=GRADER_SETTING)
            if module == CALLERS_MODULE:
                raise ConfigError(
                    f'config: reward.grader = "{name}" is a function of the program that started the run; '
                    "continue it there, with freerun.train(..., reward=FUNCTION, resume=True), or name "
                    "another grader"
                )
        elif name in _BUILT_IN:
            _BUILT_IN[name].check(config)
        else:
            raise _unknown_grader(name, config)


def make_graders(*configs: RewardConfig) -> dict[str, LoadedGrader]:
    """The graders that any of `configs` names, ready to be called; imports the user's modules."""
    graders: dict[str, LoadedGrader] = {}
    for config in configs:
        check_graders(config)
        for _, name in config.parts:
            if name not in graders:
                is_own = is_user_code(name)
                graders[name] = import_function(name) if is_own else of_text(_BUILT_IN[name].make(config))
    return graders


def check_answers(config: RewardConfig, prompts: Iterable[Prompt]) -> None:
    """Raise with the first prompts whose answers a grader cannot read: in a run they would be failed grades."""
    checks = cache(lambda grader: _answer_checks(with_grader(config, grader)))
    complaints: dict[str, str] = {}
    num_prompts = 0
    for prompt in prompts:
        num_prompts += 1
        for grader, check in checks(prompt.grader):
            try:
                check(prompt)
            except ValueError as error:
                complaints.setdefault(prompt.key, f'{prompt.key}: the grader "{grader}" cannot grade it: {error}')
    if complaints:
        lines = list(complaints.values())[:NUM_REPORTED]
        lines.append(
            f"{len(complaints)} of {num_prompts} answers cannot be read; fix them or change reward.grader"
        )
        raise DataError("\n".join(lines))


def _answer_checks(config: RewardConfig) -> list[tuple[str, Callable[[Prompt], object]]]:
    known = [(name, _BUILT_IN[name].check_answer) for _, name in config.parts if name in _BUILT_IN]
    return [(name, check) for name, check in known if check is not None]


def _unknown_grader(name: str, config: RewardConfig) -> ConfigError:
    hint = did_you_mean(name, _BUILT_IN, otherwise='your own function is written "module:function"')
    return ConfigError(
        f'config: unknown grader "{name}" in reward.grader = "{config.grader}"; '
        f"there are {', '.join(_BUILT_IN)}{hint}"
    )


def _compiled(key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f'config: reward.{key} "{pattern}" is not a regular expression: {error.msg} at position {error.pos}'
        ) from error
