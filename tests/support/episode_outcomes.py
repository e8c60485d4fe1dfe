"""Episodes that return or raise something, and what came of them."""

from typing import Any

from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.types import Reward


def returning(value: Any, num_calls: int = 1) -> Episode:
    async def episode(task: Task, policy: Policy) -> Any:
        for _ in range(num_calls):
            await policy.chat().say(task.text)
        return value

    return episode


def raising(error: BaseException) -> Episode:
    async def episode(task: Task, policy: Policy) -> float:
        await policy.chat().say(task.text)
        raise error

    return episode


def reward_of(outcome: EpisodeDone | EpisodeFailed) -> Reward:
    assert isinstance(outcome, EpisodeDone)
    return outcome.reward


def reason_of(outcome: EpisodeDone | EpisodeFailed) -> str:
    assert isinstance(outcome, EpisodeFailed)
    return outcome.reason
