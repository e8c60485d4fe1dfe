"""Live sessions: what is recorded, what a rating trains on, and what is given back."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_loops import in_event_loop
from tokenizer_kinds import byte_level, load

from freerun.chat.messages import ChatCall, Message, Reply
from freerun.chat.rendering import Renderer
from freerun.chat.session import SessionLimits
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ContextLengthError, SessionUnratedError
from freerun.rollout.live_sessions import LiveSession, LiveTraffic
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Completion, Prompt, Request, Sampling, Span, Trajectory

NOBODY: Any = None
"""Grades nothing: clients rate."""
LIMITS = SessionLimits(max_turns=50, max_session_tokens=60, max_completion_tokens=8)


class CountingEngine:
    """Says "a", "b", "c" ...; a test moves its version and may hold it up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.requests: list[Request] = []
        self.ended: list[int] = []
        self.version = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._tokenizer = tokenizer

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        text = "abcdefghij"[len(self.requests)]
        self.requests.append(request)
        await self.may_answer.wait()
        ids = self._tokenizer.encode_after(text, int(request.prompt_token_ids[-1]))
        span = Span(self.version, len(ids))
        logprobs = np.full(len(ids), -1.0, np.float32)
        return (Completion(token_ids=ids, logprobs=logprobs, spans=(span,), finish_reason="length", text=text),)

    def end_session(self, session: int) -> None:
        self.ended.append(session)


class Run:
    """Live traffic, and a gate with so much room."""

    def __init__(self, renderer: Renderer, *, room: int, feedback_seconds: float = 60.0) -> None:
        self.engine = CountingEngine(renderer.tokenizer)
        self.room = room
        self.groups: list[asyncio.Task[tuple[Trajectory, ...]]] = []
        self.decode = renderer.tokenizer.decode
        self.traffic = LiveTraffic(
            renderer,
            self.engine,
            Sampling(max_completion_tokens=8, temperature=0.5),
            LIMITS,
            feedback_seconds=feedback_seconds,
            start_recording=self.start,
            request_ids=itertools.count(),
            numbers=itertools.count(),
        )

    def start(self) -> Prompt | None:
        if len(self.groups) >= self.room:
            return None
        ordinal = len(self.groups)
        prompt = Prompt(
            ordinal=ordinal, key=f"live:{ordinal}", text="", answer="", token_ids=np.zeros(0, np.int32)
        )
        self.groups.append(asyncio.create_task(self.traffic(prompt, self.engine, NOBODY)))
        return prompt

    def trained(self, trajectory: Trajectory) -> str:
        """What of a trajectory was sampled."""
        completion = trajectory.completion
        return str(self.decode(completion.token_ids[completion.is_sampled]))


async def say(session: LiveSession, *contents: str) -> Reply:
    roles = itertools.cycle(("user", "assistant"))
    messages = tuple(Message(role=next(roles), content=content) for content in contents)  # type: ignore[arg-type]
    [reply] = await session.reply(ChatCall(messages=messages))
    return reply


@in_event_loop
async def test_a_rated_session_is_trained_on_with_its_reward(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=1)
    session = run.traffic.open_session()
    first = await say(session, "hello")
    second = await say(session, "hello", first.text, "more")
    assert run.traffic.rate(second.id, -0.5)
    [trajectory] = await run.groups[0]
    assert run.trained(trajectory) == "ab"
    assert (trajectory.reward.value, trajectory.reward.is_correct) == (-0.5, False)
    assert trajectory.prompt.text == "hello"
    assert run.decode(trajectory.prompt.token_ids) == "hello"
    assert [span.call for span in trajectory.completion.spans if span.version is not None] == [0, 1]
    assert {request.sampling.temperature for request in run.engine.requests} == {0.5}


@in_event_loop
async def test_a_rating_is_of_a_reply_and_what_led_to_it_not_of_other_branches(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=1)
    session = run.traffic.open_session()
    first = await say(session, "hello")
    await say(session, "hello", first.text, "one way")
    other = await say(session, "hello", first.text, "another way")
    await say(session, "hello", first.text, "another way", other.text, "on")
    assert run.traffic.rate(other.id, 1.0)
    [trajectory] = await run.groups[0]
    assert run.trained(trajectory) == "ac"


@in_event_loop
async def test_without_room_a_session_is_served_and_recorded_from_the_next_call_with_room(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=0)
    session = run.traffic.open_session()
    first = await say(session, "hello")
    assert not run.traffic.rate(first.id, 1.0)
    run.room, run.engine.version = 1, 3
    second = await say(session, "hello", first.text, "more")
    assert run.traffic.rate(second.id, 1.0)
    [trajectory] = await run.groups[0]
    assert run.trained(trajectory) == "b", "what was said before the recording is given"
    assert trajectory.completion.oldest_version == 3
    assert run.decode(trajectory.prompt.token_ids) == "helloamore"
    assert len({request.session for request in run.engine.requests}) == 1, "the engine keeps one cache for both"


@in_event_loop
async def test_the_first_rating_ends_a_recording_and_the_next_call_begins_another(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=2)
    session = run.traffic.open_session()
    first = await say(session, "hello")
    assert run.traffic.rate(first.id, 1.0)
    assert not run.traffic.rate(first.id, 0.0), "once"
    second = await say(session, "hello", first.text, "more")
    assert run.traffic.rate(second.id, 0.0)
    trained = [run.trained(trajectory) for group in run.groups for trajectory in await group]
    assert trained == ["a", "b"]


@in_event_loop
async def test_a_call_that_is_in_flight_when_its_session_is_rated_is_answered_and_not_trained_on(
    tmp_path: Path,
) -> None:
    run = Run(plain(tmp_path), room=2)
    session = run.traffic.open_session()
    first = await say(session, "hello")
    run.engine.may_answer.clear()
    waiting = asyncio.create_task(say(session, "hello", first.text, "more"))
    await until(lambda: len(run.engine.requests) == 2)
    assert run.traffic.rate(first.id, 1.0)
    [trajectory] = await run.groups[0]
    run.engine.may_answer.set()
    late = await waiting
    assert late.text == "b"
    assert run.trained(trajectory) == "a"
    assert not run.traffic.rate(late.id, 1.0)
    assert len(run.groups) == 1


@in_event_loop
async def test_a_session_without_feedback_is_unrated_and_its_feedback_comes_too_late(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=1, feedback_seconds=0.05)
    reply = await say(run.traffic.open_session(), "hello")
    with pytest.raises(SessionUnratedError, match=r"live:0: no feedback in 0\.05 s"):
        await run.groups[0]
    assert not run.traffic.rate(reply.id, 1.0)


def test_a_rating_that_was_accepted_in_the_last_moment_is_trained_on(tmp_path: Path) -> None:
    async def rate_as_time_ends() -> tuple[bool, str]:
        run = Run(plain(tmp_path), room=1, feedback_seconds=5.0)
        loop, accepted = asyncio.get_running_loop(), list[bool]()
        ends = loop.time() + 5.0
        reply = await say(run.traffic.open_session(), "hello")
        assert loop.time() == ends - 5.0
        # In the same turn of the loop as the end of the time, just before it.
        loop.call_at(ends - 1e-10, lambda: accepted.append(run.traffic.rate(reply.id, 1.0)))
        [trajectory] = await run.groups[0]
        return accepted == [True], run.trained(trajectory)

    assert run_in_virtual_time(rate_as_time_ends()) == (True, "a")


@in_event_loop
async def test_a_session_that_gets_no_reply_gives_its_place_back_at_once(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=1)
    with pytest.raises(ContextLengthError):
        await say(run.traffic.open_session(), "hello " * 100)
    with pytest.raises(SessionUnratedError, match="got no reply"):
        await run.groups[0]


@in_event_loop
async def test_a_conversation_that_expired_may_still_be_rated(tmp_path: Path) -> None:
    run = Run(plain(tmp_path), room=1)
    session = run.traffic.open_session()
    reply = await say(session, "hello")
    session.end()
    assert run.engine.ended == [0]
    assert run.traffic.rate(reply.id, 1.0)
    [trajectory] = await run.groups[0]
    assert run.trained(trajectory) == "a"


def plain(directory: Path) -> Renderer:
    return Renderer(load(directory, byte_level()), use_chat_template=False)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)
