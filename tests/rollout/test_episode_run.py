"""Whatever an episode does, its session ends with a reward or a reason; a limit is scored, a failure is not."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from played_sessions import ScriptedSession, lines, make_policy, make_task, play, tool_call
from virtual_time import run_in_virtual_time

from freerun.chat.messages import ChatCall
from freerun.errors import FreerunError, SessionEndedError, TruncatedError
from freerun.rollout import episode_run
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.types import Grade, Reward


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


async def wait_forever() -> None:
    await asyncio.Event().wait()


def hanging(then: Callable[[BaseException], Any]) -> Episode:
    """Hangs; `then` decides what it does about being interrupted."""

    async def episode(task: Task, policy: Policy) -> Any:
        await policy.chat().say(task.text)
        while True:
            try:
                await wait_forever()
            except BaseException as error:  # noqa: BLE001 - some users do that
                if (value := then(error)) is not None:
                    return value

    return episode


def reraise(error: BaseException) -> float:
    raise error


@pytest.mark.parametrize(
    ("then", "reward", "end"),
    [
        (reraise, Reward(0.0, False), 10.0),
        (lambda error: 0.5 if isinstance(error, TruncatedError) else 0.0, Reward(0.5, True), 10.0),
        (lambda error: 0.5 if isinstance(error, asyncio.CancelledError) else None, Reward(0.5, True), 10.5),
    ],
)
def test_an_episode_that_is_out_of_time_may_still_say_what_it_is_worth(
    then: Callable[[BaseException], Any], reward: Reward, end: float
) -> None:
    async def run() -> EpisodeDone | EpisodeFailed:
        outcome = await play(hanging(then), seconds=10.0)
        assert asyncio.get_running_loop().time() == end
        return outcome

    outcome = run_in_virtual_time(run())
    assert isinstance(outcome, EpisodeDone)
    assert (outcome.reward, outcome.is_truncated) == (reward, True)


def test_an_episode_that_cannot_be_stopped_is_left_behind_and_counted() -> None:
    async def run() -> None:
        session = ScriptedSession(lines("a"))
        policy = make_policy(session)
        is_over = asyncio.Event()

        async def stubborn(task: Task, policy: Policy) -> float:
            await policy.chat().say(task.text)
            while not is_over.is_set():
                try:
                    await is_over.wait()
                except BaseException:  # noqa: BLE001 - what is tested
                    continue
            return 1.0

        outcome = await run_episode(stubborn, make_task(), policy, SessionClock(10.0))
        seconds, num_abandoned = asyncio.get_running_loop().time(), policy.tools.abandoned.num_running
        is_over.set()
        assert reward_of(outcome) == Reward(0.0, False)
        assert (seconds, num_abandoned, session.is_ended) == (11.0, 1, True)
        while policy.tools.abandoned.num_running:
            await asyncio.sleep(0)

    run_in_virtual_time(run())


def test_time_in_which_the_clock_stands_still_does_not_count() -> None:
    async def run() -> EpisodeDone | EpisodeFailed:
        clock = SessionClock(10.0)

        async def slow(call: ChatCall) -> str:
            with clock.stopped():
                await asyncio.sleep(100)
            return "a"

        policy = make_policy(ScriptedSession(slow))
        return await run_episode(returning(1.0, num_calls=5), make_task(), policy, clock)

    outcome = run_in_virtual_time(run())
    assert isinstance(outcome, EpisodeDone)
    assert not outcome.is_truncated


def test_a_grade_at_the_end_of_a_session_takes_the_time_that_it_takes() -> None:
    async def run() -> EpisodeDone | EpisodeFailed:
        clock = SessionClock(10.0)

        async def slow_grader(text: str) -> Grade:
            with clock.stopped():
                await asyncio.sleep(100)
            return Reward(0.75, True)

        async def careful(task: Task, policy: Policy) -> float:
            reply = await policy.chat().say(task.text)
            with contextlib.suppress(TruncatedError):
                await wait_forever()
            return await task.grade(reply.text)

        policy = make_policy(ScriptedSession(lines("a")))
        return await run_episode(careful, make_task(grader=slow_grader), policy, clock)

    assert reward_of(run_in_virtual_time(run())) == Reward(0.75, True)


def test_an_episode_that_is_out_of_time_gets_no_more_replies() -> None:
    async def talkative(task: Task, policy: Policy) -> float:
        chat = policy.chat()
        while True:
            with contextlib.suppress(TruncatedError):
                await chat.say(task.text)
                await asyncio.sleep(4)

    async def run() -> None:
        outcome = await play(talkative, seconds=10.0)
        assert isinstance(outcome, EpisodeDone)
        assert (outcome.reward, outcome.is_truncated, len(outcome.sequences)) == (Reward(0.0, False), True, 3)
        assert asyncio.get_running_loop().time() == 10.0

    run_in_virtual_time(run())


def test_cancelling_a_session_ends_its_episode_and_is_passed_on() -> None:
    ends: list[str] = []

    async def episode(task: Task, policy: Policy) -> float:
        await policy.chat().say(task.text)
        try:
            await wait_forever()
        finally:
            ends.append("episode")
        return 1.0

    async def run() -> None:
        session = ScriptedSession(lines("a"))
        running = asyncio.create_task(run_episode(episode, make_task(), make_policy(session), SessionClock(10.0)))
        while not session.num_calls:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ends == ["episode"]
        assert session.is_ended
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(run())


def test_cancelling_a_session_that_has_not_begun_leaves_nothing() -> None:
    async def run() -> None:
        policy = make_policy(ScriptedSession(lines("a")))
        running = asyncio.create_task(run_episode(returning(1.0), make_task(), policy, SessionClock(10.0)))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_in_virtual_time(run())


def test_calls_after_the_end_of_a_session_are_refused() -> None:
    async def run() -> None:
        left: list[asyncio.Task[Any]] = []

        async def episode(task: Task, policy: Policy) -> float:
            await policy.chat().say(task.text)
            left.append(asyncio.create_task(later(policy)))
            return 1.0

        async def later(policy: Policy) -> None:
            await asyncio.sleep(1)
            await policy.chat().say("still there?")

        outcome = await play(episode)
        with pytest.raises(SessionEndedError):
            await left[0]
        assert isinstance(outcome, EpisodeDone)
        assert len(outcome.sequences) == 1

    run_in_virtual_time(run())


@pytest.mark.parametrize("end", ["returns", "calls", "grades", "raises"])
def test_a_fork_of_the_process_ends_where_it_would_be_a_second_session(end: str) -> None:
    forks: list[int] = []

    async def episode(task: Task, policy: Policy) -> float:
        reply = await policy.chat().say(task.text)
        pid = os.fork()
        if pid == 0:
            match end:
                case "calls":
                    await policy.chat().say(task.text)
                case "grades":
                    await task.grade(reply.text)
                case "raises":
                    raise ValueError
            return 0.0
        forks.append(pid)
        return 1.0

    outcome = asyncio.run(play(episode))
    assert reward_of(outcome).value == 1.0
    [fork] = forks
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0


def test_a_session_out_of_time_before_its_first_reply_is_a_failure() -> None:
    async def episode(task: Task, policy: Policy) -> float:
        await wait_forever()
        return 1.0

    assert "nothing to train on" in reason_of(run_in_virtual_time(play(episode, seconds=1.0)))


def test_an_interrupt_reaches_a_tool_that_hangs() -> None:
    reasons: list[str] = []

    async def wait() -> None:
        await wait_forever()

    async def episode(task: Task, policy: Policy) -> float:
        await policy.chat().say(task.text)
        try:
            await policy.chat(tools=[wait]).run(task.text)
        except TruncatedError as error:
            reasons.append(str(error))
            raise
        return 1.0

    session = ScriptedSession(lines("a", tool_call("wait")))
    assert reward_of(run_in_virtual_time(play(episode, session=session, seconds=10.0))) == Reward(0.0, False)
    assert "rollout.session_seconds = 10" in reasons[0]


def test_the_grace_of_an_episode_is_a_share_of_its_time() -> None:
    assert episode_run.GRACE_SHARE <= 0.05  # a hanging episode costs its time, give or take 10 %
