"""Episodes that are out of time, cancelled or forked: the session ends once, and nothing is left of it."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
from episode_outcomes import reason_of, returning, reward_of
from played_sessions import ScriptedSession, lines, make_policy, make_task, play, tool_call

from freerun.chat.messages import ChatCall
from freerun.errors import SessionEndedError, TruncatedError
from freerun.rollout import episode_run
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Grade, Reward


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
