"""Converts what an episode returned to a reward.

    True, False     1 and 0
    a number        the reward itself; correct if it is greater than 0, as for graders
    task.grade()    what the grader gave, its parts included
    a Reward        used as it is

Anything else is an error that names what was returned: an episode that forgets its `return` must not look like one
that scored 0.
"""

import math
import numbers
import reprlib
from typing import Any

import msgspec
import numpy as np

from freerun.config.values import MAX_REWARD
from freerun.errors import RolloutError
from freerun.rollout.episode import GradedValue
from freerun.types import Reward


class NotARewardError(RolloutError):
    """An episode returned something other than a reward."""


def to_reward(returned: Any, *, num_calls: int, is_truncated: bool) -> Reward:
    """The reward of a session with `num_calls` calls; at a limit the last calls may have been refused."""
    if isinstance(returned, Reward):
        reward = _checked(returned)
        return _with_turns(reward, num_calls, is_truncated=is_truncated) if reward.turns else reward
    if isinstance(returned, GradedValue):
        return returned.reward
    if isinstance(returned, bool | np.bool_ | numbers.Real) and _is_in_bounds(value := float(returned)):
        return Reward(value, value > 0)
    raise NotARewardError(
        f"the episode returned {reprlib.repr(returned)} of type {type(returned).__name__}; return True, False, "
        f"a number from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}, or a freerun.Reward"
    )


def _checked(reward: Reward) -> Reward:
    """Check the types of the reward's fields: a struct created in Python may hold anything."""
    try:
        checked = msgspec.convert(msgspec.to_builtins(reward, enc_hook=_plain), Reward)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise NotARewardError(
            f"the episode returned {reprlib.repr(reward)}, which is no reward: {error}"
        ) from None
    for number in (checked.value, *checked.parts.values(), *checked.turns):
        if not _is_in_bounds(number):
            raise NotARewardError(
                f"the episode returned {reprlib.repr(reward)}; {number} is not a number from -{MAX_REWARD:,.0f} "
                f"to {MAX_REWARD:,.0f}"
            )
    return checked


def _with_turns(reward: Reward, num_calls: int, *, is_truncated: bool) -> Reward:
    """Check that the reward has one turn per call; a call without a reply earned nothing."""
    num_missing = num_calls - len(reward.turns)
    if num_missing < 0 or (num_missing and not is_truncated):
        raise NotARewardError(
            f"the episode returned rewards for {len(reward.turns)} turns, but the policy was called {num_calls} "
            "times; Reward.turns has one reward for each call"
        )
    return msgspec.structs.replace(reward, turns=reward.turns + (0.0,) * num_missing)


def _plain(value: Any) -> Any:
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"a {type(value).__name__} in it is no number")


def _is_in_bounds(number: float) -> bool:
    return math.isfinite(number) and abs(number) <= MAX_REWARD
