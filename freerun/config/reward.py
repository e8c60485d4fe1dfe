"""How completions are graded."""

import dataclasses
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

from msgspec import Meta

from freerun.config.section import Section, require
from freerun.config.values import Count, CountOrNone, Factor, NumProcesses, RewardValue, Seconds, checked
from freerun.errors import ConfigError

THINK_THEN_ANSWER = r"(?s)<think>((?!</?think>).)*</think>\s*<answer>((?!</?answer>).)*</answer>"
"""Reasoning between <think> tags, then the answer between <answer> tags, and nothing around them."""

CLEANUP_SECONDS = 1.0
"""Time the code grader may need to kill a program that has timed out, and to report it."""
_PLUS = re.compile(r"\+(?!(?<=[0-9.][eE]\+)[0-9])")
"""Between two terms; not the plus in the exponent of 1e+2."""
_MINUS = re.compile(r"(?:^|\s)-")
"""A minus that is no hyphen of a name, such as that of reasoning-gym."""


class Part(NamedTuple):
    """One term of the sum that is the reward."""

    weight: float
    grader: str


@dataclass(frozen=True)
class RewardConfig(Section, name="reward"):
    grader: str = "number"
    """number, exact, regex, math, code, format, reasoning-gym, your own function as "module:function", or a
    weighted sum of them such as "number + 0.2 * format", whose first part decides what counts as right."""
    pattern: str = ""
    """For the grader "regex": the first group of this pattern is compared with the answer."""
    format_pattern: str = THINK_THEN_ANSWER
    """For the grader "format": the whole completion must match this pattern, ignoring whitespace around it."""
    requires_stop: bool = False
    """A completion that was cut off at the length limit counts as wrong."""
    correct: RewardValue = 5.0
    """Reward of a right completion (the paper's +5)."""
    incorrect: RewardValue = -5.0
    """Reward of a wrong completion (the paper's -5)."""
    overlong_buffer_tokens: CountOrNone = 0
    """A penalty grows linearly over this many tokens before sampling.max_completion_tokens (DAPO); 0 is off."""
    overlong_penalty: Factor = 5.0
    """Subtracted from the reward at full length, and in proportion within the buffer."""
    num_workers: NumProcesses = 1
    """Grader processes."""
    timeout_seconds: Seconds = 10.0
    """A grade that takes longer fails: the process is killed and replaced."""
    max_failures_in_row: Count = 16
    """This many failed groups in a row stop the run."""
    code_seconds: Seconds = 8.0
    """For the grader "code": a program and its tests that take longer (wall clock) are wrong."""
    code_memory_bytes: Annotated[int, Meta(ge=1, le=2**50)] = 512 * 1024 * 1024
    """For the grader "code": address space of each process of a program."""
    sandbox_without: tuple[str, ...] = ()
    """Parts of the sandbox this machine may lack: namespaces, landlock, seccomp (docs/sandbox.md)."""

    def check(self) -> None:
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
        return Part(checked(f'reward.grader = "{self.grader}": the weight', weight, RewardValue), grader)


def with_grader(config: RewardConfig, grader: str) -> RewardConfig:
    """The configuration for prompts with their own grader; empty means `reward.grader`."""
    return dataclasses.replace(config, grader=grader) if grader else config
