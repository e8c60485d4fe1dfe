"""How completions are judged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from freerun.config.checks import (
    COUNT,
    COUNT_OR_NONE,
    FACTOR,
    PROCESSES,
    SECONDS,
    Range,
    require,
    require_ranges,
)
from freerun.errors import ConfigError

THINK_THEN_ANSWER = r"(?s)<think>((?!</?think>).)*</think>\s*<answer>((?!</?answer>).)*</answer>"
"""Reasoning between <think> tags, then the answer between <answer> tags, and nothing around them."""

CLEANUP_SECONDS = 1.0
"""What the code grader may need to kill a program that is out of time, and to say so."""
_PLUS = re.compile(r"\+(?!(?<=[0-9.][eE]\+)[0-9])")
"""Between two terms; not the plus in the exponent of 1e+2."""
_MINUS = re.compile(r"(?:^|\s)-")
"""A minus that is no hyphen of a name, such as that of reasoning-gym."""


REWARD = Range(-1e9, 1e9)
"""Of one completion: advantages are differences and squares of these, in float32."""


class Part(NamedTuple):
    """One term of the sum that is the reward."""

    weight: float
    grader: str


@dataclass(frozen=True)
class RewardConfig:
    grader: str = "number"
    """number, exact, regex, math, code, format, reasoning-gym, your own function as "module:function", or a
    weighted sum of them such as "number + 0.2 * format", whose first part decides what counts as right."""
    pattern: str = ""
    """For the grader "regex": the first group of this pattern is compared with the answer."""
    format_pattern: str = THINK_THEN_ANSWER
    """For the grader "format": the whole completion must match this pattern, but for whitespace around it."""
    requires_stop: bool = False
    """A completion that was cut off at the length limit counts as wrong."""
    correct: float = 5.0
    """Reward of a right completion (the paper's +5)."""
    incorrect: float = -5.0
    """Reward of a wrong completion (the paper's -5)."""
    overlong_buffer_tokens: int = 0
    """A penalty grows over the last so many tokens before sampling.max_completion_tokens (DAPO); 0 is off."""
    overlong_penalty: float = 5.0
    """Taken from the reward of a completion of the full length, and in proportion within the buffer before it."""
    num_workers: int = 1
    """Grader processes."""
    timeout_seconds: float = 10.0
    """A grader that takes longer over a completion fails: its process is killed and replaced."""
    max_failures_in_row: int = 16
    """This many failed groups without a success between them stop the run."""
    code_seconds: float = 8.0
    """For the grader "code": a program and its tests that take longer (wall clock) are wrong."""
    code_memory_bytes: int = 512 * 1024 * 1024
    """For the grader "code": address space of each process of a program."""
    sandbox_without: tuple[str, ...] = ()
    """Parts of the sandbox this machine may lack: namespaces, landlock, seccomp (docs/sandbox.md)."""

    def __post_init__(self) -> None:
        require_ranges(
            "reward",
            self,
            correct=REWARD,
            incorrect=REWARD,
            overlong_buffer_tokens=COUNT_OR_NONE,
            overlong_penalty=FACTOR,
            num_workers=PROCESSES,
            timeout_seconds=SECONDS,
            max_failures_in_row=COUNT,
            code_seconds=SECONDS,
            code_memory_bytes=Range(1, 2**50),
        )
        require(self.correct > self.incorrect, "reward.correct must be greater than reward.incorrect")
        graders = [part.grader for part in self.parts]
        for grader in graders:
            require(graders.count(grader) == 1, f'reward.grader = "{self.grader}" names {grader} twice')
        if "regex" in graders:
            require(self.pattern != "", 'reward.pattern is empty; the grader "regex" needs one')
        if "code" in graders:
            require(
                self.code_seconds + CLEANUP_SECONDS <= self.timeout_seconds,
                f"reward.code_seconds = {self.code_seconds} must be at least {CLEANUP_SECONDS} s less than "
                f"reward.timeout_seconds = {self.timeout_seconds}: a slow program is wrong, but a grade "
                "that is too slow is a failure",
            )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The terms of `grader`, in order."""
        return tuple(self._part(term) for term in _PLUS.split(self.grader))

    def _part(self, term: str) -> Part:
        weight_text, star, grader = (text.strip() for text in term.rpartition("*"))
        example = 'a grader is a name, or a sum such as "number + 0.2 * format"'
        subtract = 'to subtract, write "+ -0.2 * ..."'
        require(grader != "", f'reward.grader = "{self.grader}" has a term without a name; {example}')
        require(
            not _MINUS.search(grader),
            f'reward.grader = "{self.grader}": "{grader}" is not the name of a grader; {subtract}',
        )
        try:
            weight = float(weight_text) if star else 1.0
        except ValueError as error:
            raise ConfigError(
                f'config: reward.grader = "{self.grader}": "{weight_text}" is not a weight; {example} ({subtract})'
            ) from error
        require(weight in REWARD, f'reward.grader = "{self.grader}": the weight {weight} must lie {REWARD}')
        return Part(weight, grader)
