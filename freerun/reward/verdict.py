"""Converts the result of a grader call to its reward, before weighting.

    True, False        reward.correct, reward.incorrect
    Credit(share)      in proportion between the two; correct only at full credit
    a number           the reward itself; correct if it is greater than 0
    {name: verdict}    the sum of its entries, each recorded under its name; the first entry decides whether the
                       completion is right

A function that compares the completions of a group returns a list of these. A grader that raises, or returns
anything else, is a failure, reported with the end of its traceback.
"""

import numbers
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from freerun.config.reward import RewardConfig
from freerun.config.user_code import end_of_traceback
from freerun.config.values import MAX_REWARD
from freerun.reward.messages import Job
from freerun.types import Grade, GradeFailed, Reward

GraderFunction = Callable[[str, str, str], Any]
"""(prompt text, completion text, answer) -> verdict: a grader that needs nothing else."""
CREDIT_TOLERANCE = 1e-6
"""Shares are sums and quotients of floats: a share this close to 1 counts as 1."""


class Credit(NamedTuple):
    """A partly correct completion."""

    share: float
    """Share that is correct, from 0 to 1."""


@dataclass(frozen=True)
class LoadedGrader:
    """A grader ready to be called, and what it needs to be given."""

    verdicts: Callable[[Job], Sequence[Any]]
    """Returns one verdict per completion of a job, in order; `to_reward` checks them."""
    is_group: bool = False
    takes_row: bool = False


def of_text(grade: GraderFunction) -> LoadedGrader:
    """A grader that judges completions one by one."""
    return LoadedGrader(lambda job: [grade(job.prompt, completion, job.answer) for completion in job.completions])


def judge(grader: LoadedGrader, job: Job, config: RewardConfig) -> tuple[Grade, ...]:
    """Call the grader; a fork of this process that returns from the call is ended."""
    pid = os.getpid()
    try:
        return tuple(to_reward(verdict, job.grader, config) for verdict in _verdicts(grader, job))
    except BaseException:  # noqa: BLE001 - the edge of user code: a failure is data
        return (GradeFailed(f"{job.grader} failed:\n{end_of_traceback()}"),) * len(job.completions)
    finally:
        if os.getpid() != pid:
            os._exit(0)


def _verdicts(grader: LoadedGrader, job: Job) -> Sequence[Any]:
    verdicts = grader.verdicts(job)
    expected = len(job.completions)
    if not isinstance(verdicts, list | tuple | np.ndarray) or len(verdicts) != expected:
        raise ValueError(
            f"{job.grader} returned {reprlib.repr(verdicts)} of type {type(verdicts).__name__} for a group of "
            f"{expected} completions; return a list of {expected} verdicts, in the same order"
        )
    return list(verdicts)


def to_reward(verdict: Any, grader: str, config: RewardConfig) -> Reward:
    """The reward of a verdict; raises with the grader's name if it is not a verdict."""
    if not isinstance(verdict, Mapping):
        return _to_value(verdict, grader, config)
    if not verdict or not all(isinstance(name, str) and name.isprintable() for name in verdict):
        raise ValueError(
            f"{grader} returned {reprlib.repr(verdict)}; a dict of parts holds at least one, "
            "and their names are printable text"
        )
    rewards = {name: _to_value(part, f'{grader}, part "{name}",', config) for name, part in verdict.items()}
    return Reward(
        value=sum(reward.value for reward in rewards.values()),
        is_correct=next(iter(rewards.values())).is_correct,
        parts={name: reward.value for name, reward in rewards.items()},
    )


def _to_value(verdict: Any, grader: str, config: RewardConfig) -> Reward:
    if isinstance(verdict, bool | np.bool_):
        verdict = Credit(float(verdict))
    if isinstance(verdict, Credit) and 0 <= verdict.share <= 1:
        value = config.incorrect + verdict.share * (config.correct - config.incorrect)
        return Reward(value, verdict.share >= 1 - CREDIT_TOLERANCE)
    if isinstance(verdict, numbers.Real) and abs(value := float(verdict)) <= MAX_REWARD:
        return Reward(value, value > 0)
    raise ValueError(
        f"{grader} returned {reprlib.repr(verdict)} of type {type(verdict).__name__}; "
        f"return True, False, a number from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}, or a dict of these by name"
    )
