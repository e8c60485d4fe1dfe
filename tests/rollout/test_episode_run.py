"""Whatever an episode does, its session ends with a reward or a reason; a limit is scored, a failure is not."""

import asyncio
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from episode_outcomes import raising, reason_of, returning, reward_of
from played_sessions import ScriptedSession, lines, play

from freerun.errors import FreerunError, TruncatedError
from freerun.rollout.episode import Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.types import Reward


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        (0.5, Reward(0.5, True)),
        (0, Reward(0.0, False)),
        (1, Reward(1.0, True)),
        (-1.5, Reward(-1.5, False)),
        (True, Reward(1.0, True)),
        (False, Reward(0.0, False)),
        (np.float32(0.5), Reward(0.5, True)),
        (np.bool_(True), Reward(1.0, True)),
        (np.int64(0), Reward(0.0, False)),
        (Fraction(1, 2), Reward(0.5, True)),
        (Reward(0.9, False), Reward(0.9, False)),
        (Reward(0.5, True, {"speed": 0.5}, (0.0, 0.5)), Reward(0.5, True, {"speed": 0.5}, (0.0, 0.5))),
        (Reward(np.float32(0.5), np.bool_(True)), Reward(0.5, True)),  # type: ignore[arg-type] # as users do
    ],
)
def test_what_is_a_reward(returned: Any, reward: Reward) -> None:
    assert reward_of(asyncio.run(play(returning(returned, 2)))) == reward


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "the episode returned None of type NoneType; return True, False, a number"),
        ("good", "the episode returned 'good' of type str"),
        ([1.0], "the episode returned [1.0] of type list"),
        (float("nan"), "the episode returned nan"),
        (float("inf"), "the episode returned inf"),
        (1e10, "the episode returned 10000000000.0"),
        (1j, "the episode returned 1j of type complex"),
        (np.ones(2), "of type ndarray"),
        (Reward(float("nan"), True), "nan is not a number"),
        (Reward(1.0, True, {"a": float("inf")}), "inf is not a number"),
        (Reward(1.0, True, {}, (1.0, float("nan"))), "nan is not a number"),
        (Reward("1", True), "which is no reward"),  # type: ignore[arg-type] # what is tested
        (Reward(1.0, None), "which is no reward"),  # type: ignore[arg-type] # what is tested
        (Reward(1.0, True, {"a": object()}), "a object in it is no number"),  # type: ignore[dict-item] # tested
        (Reward(1.0, True, {}, (1.0,)), "rewards for 1 turns, but the policy was called 2 times"),
    ],
)
def test_what_is_no_reward_is_a_failure_that_names_it(returned: Any, words: str) -> None:
    assert words in reason_of(asyncio.run(play(returning(returned, 2))))


class Silent(Exception):  # noqa: N818 - not ours to name
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such room"), "ValueError: no such room"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError("own"), "CancelledError: own"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(), "StopIteration"),
        (Silent(), "Silent"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("\ud800"), "RuntimeError: ?"),
        (RuntimeError("x" * 100_000), "xxx"),
    ],
)
def test_an_exception_is_a_failure_with_the_end_of_its_traceback(error: BaseException, words: str) -> None:
    reason = reason_of(asyncio.run(play(raising(error))))
    assert words in reason
    assert len(reason) <= 2_000
    reason.encode()


@pytest.mark.parametrize("error", [ValueError("lost"), TruncatedError("too long"), KeyError("lost")])
def test_what_an_episode_awaits_may_fail_and_the_episode_may_catch_it(error: Exception) -> None:
    async def episode(task: Task, policy: Policy) -> float:
        await policy.chat().say(task.text)
        failing: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failing.set_exception, error)
        try:
            return await failing
        except type(error):
            return 0.75

    assert reward_of(asyncio.run(play(episode))).value == 0.75


def test_an_error_of_ours_says_all_without_a_traceback() -> None:
    assert asyncio.run(play(raising(FreerunError("no room")))) == EpisodeFailed("sums:1: no room")


def test_an_episode_that_never_calls_the_policy_is_a_failure() -> None:
    reason = reason_of(asyncio.run(play(returning(1.0, num_calls=0))))
    assert reason.startswith("sums:1: the session ended without a completion of the policy")


def test_a_limit_that_escapes_is_worth_nothing_and_one_that_is_caught_what_the_episode_says() -> None:
    async def careless(task: Task, policy: Policy) -> float:
        while True:
            await policy.chat().say(task.text)

    async def careful(task: Task, policy: Policy) -> float:
        try:
            return await careless(task, policy)
        except TruncatedError:
            return 0.25

    for episode, value in ((careless, 0.0), (careful, 0.25)):
        outcome = asyncio.run(play(episode, session=ScriptedSession(lines("a"), max_turns=3)))
        assert isinstance(outcome, EpisodeDone)
        assert (outcome.reward.value, outcome.is_truncated, len(outcome.sequences)) == (value, True, 3)


def test_what_a_client_makes_of_a_limit_is_scored_too() -> None:
    async def client(task: Task, policy: Policy) -> float:
        try:
            while True:
                await policy.chat().say(task.text)
        except TruncatedError:
            raise ConnectionError("400 Bad Request") from None

    outcome = asyncio.run(play(client, session=ScriptedSession(lines("a"), max_turns=3)))
    assert isinstance(outcome, EpisodeDone)
    assert (outcome.reward, outcome.is_truncated) == (Reward(0.0, False), True)


def test_nonsense_is_a_failure_even_at_a_limit() -> None:
    async def forgetful(task: Task, policy: Policy) -> Any:
        try:
            while True:
                await policy.chat().say(task.text)
        except TruncatedError:
            pass

    outcome = asyncio.run(play(forgetful, session=ScriptedSession(lines("a"), max_turns=3)))
    assert "returned None" in reason_of(outcome)
