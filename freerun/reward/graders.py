"""Graders by name: functions that judge one completion's text.

    number   the last number of the completion equals the answer's number
    exact    the completion is the answer, but for whitespace around them
    regex    the first group of `reward.pattern`'s first match is the answer, but for whitespace
    math     the completion's final expression equals the answer mathematically (math-verify)
    code     the completion is a program that passes the answer's tests, in a sandbox
    format   the whole completion matches `reward.format_pattern`, but for whitespace around it
    reasoning-gym
             what the dataset of the answer, a reasoning_gym entry as JSON, gives the completion
    m:f      the user's function f(prompt=, completion=, answer=) of module m

A grader returns a verdict (`verdict.py`). Whatever it cannot judge it raises: a reference answer without a
number is a failure of the grade, not a wrong completion. A completion that says nothing usable is wrong, not
a failure.

Nothing here bounds time or survives hostile code: that is the pool's business.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from freerun.config.reward import RewardConfig
from freerun.config.user_code import split_name
from freerun.errors import ConfigError
from freerun.reward.code import code_grader
from freerun.reward.last_number import Ratio, last_number
from freerun.reward.reasoning_gym_entry import check_installed, reasoning_gym_grader
from freerun.reward.user_function import SETTING, import_function
from freerun.sandbox.features import check_allowed_absences

GraderFunction = Callable[[str, str, str], Any]
"""(prompt text, completion text, answer) -> verdict; `verdict.to_reward` checks that it is one."""


def grade_number(prompt: str, completion: str, answer: str) -> bool:
    """Whether the completion's last number equals the answer's, by value: 3.0 is 3, 1,234 is 1234.

    The last one, because reasoning comes before the result. It follows that a model that goes on after
    its answer is judged by what it says last: a completion that was stopped at a stop string still holds
    all the text of its last token, which may reach beyond the string. ` 42\\n` is 42; ` 42\\n7 * 8` is 8.
    """
    expected = require_number(answer)
    found = last_number(completion)
    return found is not None and found.is_equal_to(expected)


def require_number(answer: str) -> Ratio:
    """The number of a reference answer."""
    number = last_number(answer)
    if number is None or not number.denominator:
        raise ValueError(f"the answer {answer!r} holds no number")
    return number


def grade_exact(prompt: str, completion: str, answer: str) -> bool:
    return completion.strip() == answer.strip()


def _regex_grader(pattern: str) -> GraderFunction:
    compiled = _compiled_with_group("pattern", pattern)

    def grade_regex(prompt: str, completion: str, answer: str) -> bool:
        match = compiled.search(completion)
        return match is not None and match[1] is not None and match[1].strip() == answer.strip()

    return grade_regex


def _math_grader() -> GraderFunction:
    # Imported only by those who use it: sympy takes half a second.
    math_verify = importlib.import_module("math_verify")
    # math-verify's own timeouts are signal.alarm, which fails outside the main thread and cannot stop a C
    # loop; in AReaL that turned into rewards of 0. They are off: the pool's clock kills the whole process.
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
            # A number of more than 4,300 digits, say. It is the completion's fault if the answer can be compared.
            if not are_equal(expected, expected):
                raise
            print(f"math: wrong: cannot be read: {error!r:.200}")
            return False

    return grade_math


def _with_ascii_digits(text: str) -> str:
    """The text with the digits of all scripts as 0 to 9: math-verify finds the others, but cannot read them."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)


def _format_grader(pattern: str) -> GraderFunction:
    compiled = _compiled("format_pattern", pattern)
    return lambda prompt, completion, answer: compiled.fullmatch(completion.strip()) is not None


CALLERS_MODULE = "__main__"
"""Of a reward function that only the program that calls `freerun.train` has."""

_BY_NAME: dict[str, Callable[[RewardConfig], GraderFunction]] = {
    "number": lambda config: grade_number,
    "exact": lambda config: grade_exact,
    "regex": lambda config: _regex_grader(config.pattern),
    "math": lambda config: _math_grader(),
    "format": lambda config: _format_grader(config.format_pattern),
    "reasoning-gym": lambda config: reasoning_gym_grader(),
    "code": code_grader,
}


def check_graders(config: RewardConfig) -> None:
    """Refuse what can be refused without running the user's code; the pool's start checks the rest."""
    for _, name in config.parts:
        match name:
            case _ if ":" in name:
                module, _ = split_name(name, setting=SETTING)
                if module == CALLERS_MODULE:
                    raise ConfigError(
                        f'config: reward.grader = "{name}" is a function of the program that started the run; '
                        "continue it there, with freerun.train(..., reward=FUNCTION, resume=True), or name "
                        "another with --reward.grader"
                    )
            case "regex":
                _compiled_with_group("pattern", config.pattern)
            case "format":
                _compiled("format_pattern", config.format_pattern)
            case "reasoning-gym":
                check_installed()
            case "code":
                check_allowed_absences(config.sandbox_without)
            case _ if name not in _BY_NAME:
                raise _unknown_grader(name, config)


def make_graders(config: RewardConfig) -> dict[str, GraderFunction]:
    """The graders that `config` names, ready to be called; imports the user's module if it names one."""
    check_graders(config)
    names = [part.grader for part in config.parts]
    return {name: import_function(name) if ":" in name else _BY_NAME[name](config) for name in names}


def _unknown_grader(name: str, config: RewardConfig) -> ConfigError:
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f'did you mean "{near[0]}"?' if near else 'your own function is written "module:function"'
    return ConfigError(
        f'config: unknown grader "{name}" in reward.grader = "{config.grader}"; '
        f"there are {', '.join(_BY_NAME)}; {hint}"
    )


def _compiled(key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f'config: reward.{key} "{pattern}" is not a regular expression: {error.msg} at position {error.pos}'
        ) from error


def _compiled_with_group(key: str, pattern: str) -> re.Pattern[str]:
    compiled = _compiled(key, pattern)
    if compiled.groups == 0:
        raise ConfigError(
            f'config: reward.{key} "{pattern}" has no group; put parentheses around the part that is the answer'
        )
    return compiled
