"""Environments: classes with `reset` and `step`, played by the policy as a conversation.

    class Guess:
        def reset(self, task): ...               returns the first observation, a text
        def step(self, action): ...              action: what the policy said; returns (observation, reward, done)

One object is made per session. Both methods may be async. Plain ones run in a thread that belongs to the
session, the same one for all calls, so an environment may hold objects bound to its thread, such as a database
connection. A `close` method, if present, is called at the end. The session's reward is the sum of its steps'
rewards, which are recorded per turn.
"""

import inspect
import numbers
import reprlib
from collections.abc import Callable
from typing import Any

from freerun.config.user_code import check_signature
from freerun.errors import ConfigError, TruncatedError
from freerun.rollout.abandoned import CallThread
from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.returned import NotARewardError
from freerun.types import Reward

EPISODE_SETTING = "rollout.episode"
_ARGUMENTS = {"reset": "task", "step": "action"}


def environment_episode(name: str, environment: type[Any]) -> Episode:
    """An episode that plays one game; `name` is the class's name in errors."""
    _check(name, environment)

    async def episode(task: Task, policy: Policy) -> Reward:
        thread = CallThread(f"freerun environment {task.key}", policy.tools.abandoned)
        try:
            return await _play(name, _Player(await thread.call(environment), thread), task, policy)
        finally:
            thread.close()

    return episode


class _Player:
    """Calls the methods of one environment, plain or async."""

    def __init__(self, environment: Any, thread: CallThread) -> None:
        self._environment = environment
        self._thread = thread

    async def call(self, method: str, *args: Any) -> Any:
        function: Callable[..., Any] = getattr(self._environment, method)
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        return await self._thread.call(function, *args)

    async def close(self) -> None:
        if hasattr(self._environment, "close") and not self._thread.is_closed:
            await self.call("close")


async def _play(name: str, player: _Player, task: Task, policy: Policy) -> Reward:
    chat = policy.chat()
    rewards: list[float] = []
    try:
        observation = _text(name, "reset", await player.call("reset", task))
        is_done = False
        while not is_done:
            reply = await chat.say(observation)
            observation, reward, is_done = _read_step(name, await player.call("step", reply.text))
            rewards.append(reward)
    except TruncatedError:
        if not rewards:
            raise  # otherwise the rewards earned before the limit count
    finally:
        await player.close()
    value = sum(rewards)
    return Reward(value, value > 0, turns=tuple(rewards))


def _check(name: str, environment: type[Any]) -> None:
    """Refuse a class that is not an environment."""
    for method, argument in _ARGUMENTS.items():
        function = getattr(environment, method, None)
        if not callable(function):
            raise ConfigError(
                f'config: {EPISODE_SETTING}: the class "{name}" has no method {method}; an environment has '
                "reset(task) and step(action)"
            )
        shape = f"{method}(self, {argument})"
        check_signature(function, None, None, name=f"{name}.{method}", setting=EPISODE_SETTING, shape=shape)
    check_signature(
        environment, name=name, setting=EPISODE_SETTING, shape="__init__(self); reset gets task.settings"
    )


def _text(name: str, method: str, observation: Any) -> str:
    if not isinstance(observation, str):
        raise NotARewardError(
            f"{method} of {name} returned the observation {reprlib.repr(observation)} of type "
            f"{type(observation).__name__}; an observation is text"
        )
    return observation


def _read_step(name: str, result: Any) -> tuple[str, float, bool]:
    match result:
        case (observation, numbers.Real() as reward, done):
            # The last observation is not shown to the policy, so it may be None.
            return "" if done else _text(name, "step", observation), float(reward), bool(done)
    raise NotARewardError(
        f"step of {name} returned {reprlib.repr(result)}; return (observation, reward, done), such as "
        '("higher", 0.0, False)'
    )
