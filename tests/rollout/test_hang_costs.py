"""What hangs costs its limit, in virtual time: a tool `tool_seconds`, an episode `session_seconds`."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from played_sessions import ScriptedSession, Words, lines, make_policy, make_task, tool_call

from freerun.chat.messages import Message
from freerun.errors import TruncatedError
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeDone, run_episode
from freerun.simulation.virtual_time import run_in_virtual_time

SESSION_SECONDS = 120.0
TOOL_SECONDS = 10.0


def played(episode: Episode, *words: Words) -> tuple[float, EpisodeDone]:
    """How long a session takes, and what it comes to."""

    async def run() -> tuple[float, EpisodeDone]:
        policy = make_policy(ScriptedSession(lines(*words)), tool_seconds=TOOL_SECONDS)
        outcome = await run_episode(episode, make_task(), policy, SessionClock(SESSION_SECONDS))
        assert isinstance(outcome, EpisodeDone)
        return asyncio.get_running_loop().time(), outcome

    return run_in_virtual_time(run())


@pytest.fixture
def is_over() -> Iterator[threading.Event]:
    """Set after the test, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("kind", ["plain", "async", "stubborn"])
def test_a_tool_that_hangs_costs_its_seconds_in_each_turn_and_the_episode_continues(
    kind: str, is_over: threading.Event
) -> None:
    def plain() -> str:
        is_over.wait()
        return "too late"

    async def waiting() -> None:
        await asyncio.Event().wait()

    async def stubborn() -> None:
        ending = asyncio.create_task(asyncio.sleep(SESSION_SECONDS))
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ending)

    tools: dict[str, Callable[..., Any]] = {"plain": plain, "async": waiting, "stubborn": stubborn}
    tool = tools[kind]
    told: list[str] = []

    async def episode(task: Task, policy: Policy) -> float:
        chat = policy.chat(tools=[tool])
        reply = await chat.run(task.text)
        told.extend(message.content for message in chat.messages if message.role == "tool")
        return float(reply.text == "I give up")

    [call] = (asked := tool_call(tool.__name__)).tool_calls
    at_once = Message(role="assistant", tool_calls=(call, call))
    seconds, outcome = played(episode, asked, at_once, "I give up")
    assert seconds == 2 * TOOL_SECONDS, "calls of one turn run at the same time"
    assert (outcome.reward.value, outcome.is_truncated) == (1.0, False)
    assert told == [f"error: {tool.__name__} took longer than 10 seconds and was given up"] * 3


async def accepts_its_end() -> float:
    await asyncio.Event().wait()
    return 1.0


async def scores_what_was_reached() -> float:
    with contextlib.suppress(TruncatedError):
        await asyncio.Event().wait()
    return 1.0


async def waits_again_until_it_is_cancelled() -> float:
    with contextlib.suppress(TruncatedError):
        await asyncio.Event().wait()
    return await accepts_its_end()


async def ignores_all_of_it() -> float:
    ending = asyncio.create_task(asyncio.sleep(2 * SESSION_SECONDS))
    while not ending.done():
        with contextlib.suppress(TruncatedError, asyncio.CancelledError):
            await asyncio.shield(ending)
    return 1.0


@pytest.mark.parametrize(
    "hang", [accepts_its_end, scores_what_was_reached, waits_again_until_it_is_cancelled, ignores_all_of_it]
)
def test_an_episode_that_hangs_costs_the_seconds_of_a_session_and_at_most_a_tenth_more(
    hang: Callable[[], Awaitable[float]],
) -> None:
    async def episode(task: Task, policy: Policy) -> float:
        await policy.chat().say(task.text)
        return await hang()

    seconds, outcome = played(episode, "a")
    assert SESSION_SECONDS <= seconds <= 1.1 * SESSION_SECONDS
    assert outcome.is_truncated
