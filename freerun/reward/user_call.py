"""Calls a user's function with the parameters that it names.

    def grade(prompt, completion, answer, row, finish_reason, num_tokens)        one completion, one verdict
    def grade(prompt, completions, answer, row, finish_reasons, num_tokens)      all of a group, a list of verdicts

Every parameter may be omitted. One named `completions` or `finish_reasons` makes it a group function, which is
called once for all completions of a prompt; `num_tokens` is then a list too. Parameters with other names need a
default.
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from freerun.errors import ConfigError
from freerun.reward.messages import Job

OF_PROMPT = ("prompt", "answer", "row")
OF_COMPLETION = ("completion", "finish_reason", "num_tokens")
OF_GROUP = ("completions", "finish_reasons", "num_tokens")
GRADER_SETTING = "reward.grader"
SHAPES = (
    "def grade(prompt, completion, answer), with any of row, finish_reason and num_tokens, or as "
    "def grade(prompt, completions, answer) for all completions of a prompt at once"
)


@dataclass(frozen=True)
class UserCall:
    """The arguments that a user's function takes."""

    names: tuple[str, ...]
    is_group: bool

    @property
    def takes_row(self) -> bool:
        return "row" in self.names

    def verdicts(self, function: Callable[..., Any], job: Job) -> Any:
        """The function's verdicts on the completions of a job; the result of a group function is not checked."""
        if self.is_group:
            return function(**self._arguments(job))
        return [function(**self._arguments(job, index)) for index in range(len(job.completions))]

    def _arguments(self, job: Job, index: int | None = None) -> dict[str, Any]:
        values: dict[str, Any] = {"prompt": job.prompt, "answer": job.answer, "row": job.row}
        if index is None:
            lists = (job.completions, job.finish_reasons, job.num_tokens)
            values |= {name: list(given) for name, given in zip(OF_GROUP, lists, strict=True)}
        else:
            values |= {
                "completion": job.completions[index],
                "finish_reason": job.finish_reasons[index],
                "num_tokens": job.num_tokens[index],
            }
        return {name: values[name] for name in self.names}


def call_of(name: str, function: Callable[..., Any]) -> UserCall:
    """How to call the function; raises if it needs an argument that graders do not get."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of an extension module may have no signature
        return UserCall(("prompt", "completion", "answer"), is_group=False)
    asked = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    is_group = bool({"completions", "finish_reasons"} & set(asked))
    known = (*OF_PROMPT, *(OF_GROUP if is_group else OF_COMPLETION))
    for parameter in parameters:
        _check_parameter(name, parameter, known)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return UserCall(known, is_group)
    names = tuple(parameter for parameter in asked if parameter in known)
    if not {*OF_COMPLETION, *OF_GROUP} & set(names):
        raise _refusal(name, "it asks for nothing of the completion")
    return UserCall(names, is_group)


def group_refusal(name: str) -> ConfigError:
    """The error for a function that compares a group, in a run with sessions."""
    return ConfigError(
        f'config: {GRADER_SETTING}: "{name}" asks for the completions of a group, but sessions ask for one grade '
        'each, at different times; ask for "completion"'
    )


def _check_parameter(name: str, parameter: inspect.Parameter, known: tuple[str, ...]) -> None:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise _refusal(name, f'its parameter "{parameter.name}" cannot be given by name')
    is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    if is_variable or parameter.name in known:
        return
    near = difflib.get_close_matches(parameter.name, known, n=1, cutoff=0.8)
    if near or parameter.default is parameter.empty:
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise _refusal(name, f'its parameter "{parameter.name}" is none of {", ".join(known)}{hint}')


def _refusal(name: str, why: str) -> ConfigError:
    return ConfigError(f'config: {GRADER_SETTING}: "{name}" cannot be called: {why}; define it as {SHAPES}')
