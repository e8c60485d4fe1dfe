"""A class with reset and step is an environment: the policy plays it, and its rewards are those of the turns."""

import asyncio
import contextlib
import sqlite3
import threading
from typing import Any

import pytest
from played_sessions import ScriptedSession, lines, make_policy, make_task, play, said

from freerun.errors import ConfigError
from freerun.rollout.clock import SessionClock
from freerun.rollout.environment import environment_episode
from freerun.rollout.episode import Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.types import Reward


class Countdown:
    """As a user writes it: each right number earns something."""

    def reset(self, task: Task) -> str:
        self.left = 3
        return f"Count down from {self.left}."

    def step(self, action: str) -> tuple[str, float, bool]:
        is_right = action == str(self.left)
        self.left -= 1
        return ("go on", 0.5 if is_right else -1.0, self.left == 0)


class LaterCountdown:
    def __init__(self) -> None:
        self.game = Countdown()

    async def reset(self, task: Task) -> str:
        await asyncio.sleep(0)
        return self.game.reset(task)

    async def step(self, action: str) -> tuple[str, float, bool]:
        await asyncio.sleep(0)
        return self.game.step(action)


@pytest.mark.parametrize("environment", [Countdown, LaterCountdown])
def test_the_rewards_of_the_steps_are_those_of_the_turns(environment: type[Any]) -> None:
    session = ScriptedSession(lines("3", "5", "1"))
    outcome = asyncio.run(play(environment_episode("m:E", environment), session=session))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(0.0, False, turns=(0.5, -1.0, 0.5))
    assert said(session.calls[1].messages) == ["user: Count down from 3.", "assistant: 3", "user: go on"]


def test_every_session_has_an_environment_of_its_own() -> None:
    async def run() -> None:
        episode = environment_episode("m:E", Countdown)
        outcomes = await asyncio.gather(*(play(episode, "3", "2", "1") for _ in range(8)))
        assert all(isinstance(each, EpisodeDone) and each.reward.value == 1.5 for each in outcomes)

    asyncio.run(run())


def test_what_was_earned_before_a_limit_counts() -> None:
    session = ScriptedSession(lines("3", "2"), max_turns=2)
    outcome = asyncio.run(play(environment_episode("m:E", Countdown), session=session))
    assert isinstance(outcome, EpisodeDone)
    assert (outcome.reward, outcome.is_truncated) == (Reward(1.0, True, turns=(0.5, 0.5)), True)


class Database:
    """Bound to the thread that made it."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def reset(self, task: Task) -> str:
        self.connection.execute("create table said (word text)")
        return "say a word"

    def step(self, action: str) -> tuple[str, float, bool]:
        self.connection.execute("insert into said values (?)", (action,))
        [[count]] = self.connection.execute("select count(*) from said")
        return "another", 1.0, count == 3

    def close(self) -> None:
        self.connection.close()
        closed.append(None)


closed: list[None] = []


def test_all_plain_calls_of_a_session_are_made_by_one_thread() -> None:
    closed.clear()
    outcome = asyncio.run(play(environment_episode("m:E", Database), "a"))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(3.0, True, turns=(1.0, 1.0, 1.0))
    assert closed == [None]


class Broken:
    result: Any = None

    def reset(self, task: Task) -> Any:
        return "go"

    def step(self, action: str) -> Any:
        return type(self).result

    def close(self) -> None:
        closed.append(None)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "step of m:E returned None; return (observation, reward, done)"),
        (("a", 1.0), "step of m:E returned ('a', 1.0)"),
        (("a", "1", False), "step of m:E returned ('a', '1', False)"),
        ((3, 1.0, False), "step of m:E returned the observation 3 of type int; an observation is text"),
        (("a", float("nan"), True), "nan is not a number"),
    ],
)
def test_a_step_that_returns_nonsense_is_a_failure_that_names_it(result: Any, words: str) -> None:
    closed.clear()
    broken = type("Broken", (Broken,), {"result": result})
    outcome = asyncio.run(play(environment_episode("m:E", broken), "a"))
    assert isinstance(outcome, EpisodeFailed)
    assert words in outcome.reason
    assert closed == [None]


def test_a_last_observation_may_be_left_out() -> None:
    broken = type("Broken", (Broken,), {"result": (None, 1, True)})
    outcome = asyncio.run(play(environment_episode("m:E", broken), "a"))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(1.0, True, turns=(1.0,))


def test_a_reset_that_returns_nonsense_or_raises_is_a_failure() -> None:
    class Mute(Broken):
        def reset(self, task: Task) -> Any:
            return {"text": "go"}

    class Unwilling(Broken):
        def reset(self, task: Task) -> Any:
            raise LookupError("no level 9")

    for environment, words in ((Mute, "reset of m:E returned the observation"), (Unwilling, "no level 9")):
        outcome = asyncio.run(play(environment_episode("m:E", environment), "a"))
        assert isinstance(outcome, EpisodeFailed)
        assert words in outcome.reason


def test_an_environment_that_hangs_costs_the_session_its_time_and_is_counted() -> None:
    is_over = threading.Event()

    async def run() -> None:
        closed.clear()
        loop = asyncio.get_running_loop()
        clock = SessionClock(0.01)
        slowness = contextlib.ExitStack()
        slowness.enter_context(clock.stopped())  # until it hangs, however slow the machine is

        class Hanging(Broken):
            def step(self, action: str) -> Any:
                loop.call_soon_threadsafe(slowness.close)
                is_over.wait()

        policy = make_policy(ScriptedSession(lines("a")))
        outcome = await run_episode(environment_episode("m:E", Hanging), make_task(), policy, clock)
        assert isinstance(outcome, EpisodeDone)
        assert (outcome.reward, outcome.is_truncated) == (Reward(0.0, False), True)
        assert policy.tools.abandoned.num_running == 1
        assert closed == []  # its thread hangs, so it cannot be called
        is_over.set()
        while policy.tools.abandoned.num_running:
            await asyncio.sleep(0.001)

    asyncio.run(run())


def test_an_async_environment_that_hangs_keeps_what_was_earned() -> None:
    async def run() -> None:
        clock = SessionClock(0.01)
        slowness = contextlib.ExitStack()
        slowness.enter_context(clock.stopped())  # until it hangs, however slow the machine is

        class Slow(LaterCountdown):
            async def step(self, action: str) -> tuple[str, float, bool]:
                if self.game.left == 1:
                    slowness.close()
                    await asyncio.Event().wait()
                return await super().step(action)

        policy = make_policy(ScriptedSession(lines("3", "2", "1")))
        outcome = await run_episode(environment_episode("m:E", Slow), make_task(), policy, clock)
        assert isinstance(outcome, EpisodeDone)
        assert outcome.reward == Reward(1.0, True, turns=(0.5, 0.5, 0.0))

    asyncio.run(run())


class NoStep:
    def reset(self, task: Task) -> str:
        return ""


class NoAction(NoStep):
    def step(self) -> None: ...


class Sized(Countdown):
    def __init__(self, size: int) -> None: ...


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (NoStep, 'the class "m:E" has no method step'),
        (NoAction, r'"m:E.step" cannot be called.*def step\(self, action\)'),
        (Sized, r'"m:E" cannot be called.*missing.*size.*task.settings'),
    ],
)
def test_a_class_that_is_no_environment_is_refused(environment: type[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        environment_episode("m:E", environment)
