"""What an episode holds: tasks that are the same for a group, and conversations that only grow."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from played_sessions import ENDPOINT, ScriptedSession, lines, make_policy, make_task, play, said, tool_call

from freerun.chat.messages import ChatCall, Message
from freerun.errors import ConfigError
from freerun.rollout.episode import Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.types import Grade, GradeFailed, Reward


def calc(expression: str) -> str:
    """Work out an arithmetic expression, such as 12*7."""
    left, right = expression.split("*")
    return str(int(left) * int(right))


# The example of the design, as a user writes it.
async def guess(task, policy):  # type: ignore[no-untyped-def] # as a user writes it
    """Find a number from 0 to 99; fewer guesses are better."""
    secret, told = task.random.randrange(100), "Guess my number from 0 to 99. Answer with the number alone."
    chat = policy.chat()
    for turn in range(12):
        reply = await chat.say(told)
        if reply.text.strip() == str(secret):
            return 1.0 - turn / 12
        guess = int(reply.text) if reply.text.strip().isdigit() else None
        told = "a number, please" if guess is None else "higher" if guess < secret else "lower"
    return 0.0


def bisect(call: ChatCall) -> str:
    """A policy that plays the game perfectly."""
    low, high = 0, 99
    for message in call.messages:
        middle = (low + high) // 2
        low = middle + 1 if message.content == "higher" else low
        high = middle - 1 if message.content == "lower" else high
    return str((low + high) // 2)


def test_the_guessing_game_is_played_to_its_end() -> None:
    session = ScriptedSession(bisect)
    outcome = asyncio.run(play(guess, session=session))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(1.0 - (session.num_calls - 1) / 12, True)
    assert 1 < session.num_calls <= 7
    assert len(outcome.sequences) == session.num_calls
    assert not outcome.is_truncated


def test_a_policy_that_never_finds_the_number_gets_nothing() -> None:
    outcome = asyncio.run(play(guess, "what?"))
    assert isinstance(outcome, EpisodeDone)
    assert (outcome.reward, len(outcome.sequences)) == (Reward(0.0, False), 12)


async def use_a_tool(task, policy):  # type: ignore[no-untyped-def] # as a user writes it
    reply = await policy.chat(tools=[calc]).run(task.text, max_turns=4)
    return await task.grade(reply.text)


def test_an_episode_with_a_tool_is_graded() -> None:
    session = ScriptedSession(lines(tool_call("calc", '{"expression": "2*2"}'), "4"))
    outcome = asyncio.run(play(use_a_tool, session=session))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(5.0, True, {"number": 1.0})
    assert [tool.name for tool in session.calls[0].tools] == ["calc"]
    assert said(session.calls[1].messages) == ["user: 2 + 2 =", "assistant: ", "tool: 4"]


def test_a_tool_loop_ends_after_its_turns_with_the_last_reply() -> None:
    session = ScriptedSession(lines(tool_call("calc", '{"expression": "2*2"}', content="4")))
    outcome = asyncio.run(play(use_a_tool, session=session))
    assert session.num_calls == 4
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward.is_correct


def test_all_sessions_of_a_group_play_the_same_game() -> None:
    def numbers(**fields: Any) -> list[int]:
        return [make_task(**fields).random.randrange(1_000_000) for _ in range(5)]

    assert numbers(seed=1, ordinal=7, sample=0) == numbers(seed=1, ordinal=7, sample=3)
    assert numbers(seed=1, ordinal=7) != numbers(seed=1, ordinal=8)
    assert numbers(seed=1, ordinal=7) != numbers(seed=2, ordinal=7)
    task = make_task()
    assert task.random.random() != task.random.random()


def test_random_numbers_do_not_depend_on_the_process() -> None:
    assert make_task(seed=1, ordinal=7).random.randrange(1_000_000) == 590_212


def run_chat(session: ScriptedSession, talk: Callable[[Policy], Any], system: str = "") -> Any:
    async def run() -> Any:
        return await talk(make_policy(session, system=system))

    return asyncio.run(run())


def test_a_chat_shows_the_policy_all_that_was_said() -> None:
    async def talk(policy: Policy) -> tuple[Message, ...]:
        chat = policy.chat()
        await chat.say("a")
        chat.observe(Message(role="user", content="by the way"))
        await chat.say("b")
        return chat.messages

    session = ScriptedSession(lines("1", "2"))
    messages = run_chat(session, talk, system="be brief")
    assert said(messages) == [
        "system: be brief", "user: a", "assistant: 1", "user: by the way", "user: b", "assistant: 2",
    ]  # fmt: skip
    assert session.calls[1].messages == messages[:-1]


def test_a_chat_may_have_its_own_system_prompt_or_none() -> None:
    async def talk(policy: Policy) -> None:
        await policy.chat(system="be long").say("a")
        await policy.chat(system="").say("a")

    session = ScriptedSession(lines("1"))
    run_chat(session, talk, system="be brief")
    assert [said(call.messages) for call in session.calls] == [["system: be long", "user: a"], ["user: a"]]


def test_a_policy_whose_template_shows_no_tools_is_told_of_them_in_the_system_prompt() -> None:
    async def talk() -> None:
        tools = make_policy(session).tools
        policy = Policy(
            session=session,
            name="tiny",
            endpoint=lambda: ENDPOINT,
            system="be brief",
            tools=tools,
            shows_tools=False,
        )
        await policy.chat(tools=[calc]).say("a")
        await policy.chat().say("a")

    session = ScriptedSession(lines("1"))
    asyncio.run(talk())
    told, untold = (call.messages[0].content for call in session.calls)
    assert told.startswith("be brief\n\nYou may call these functions:")
    assert '"description":"Work out an arithmetic expression, such as 12*7."' in told
    assert untold == "be brief"


def test_chats_of_a_session_may_overlap() -> None:
    async def talk(policy: Policy) -> list[str]:
        replies = await asyncio.gather(*(policy.chat().say(word) for word in "abc"))
        return [reply.text for reply in replies]

    async def echo(call: ChatCall) -> str:
        await asyncio.sleep(0)
        return call.messages[-1].content

    assert run_chat(ScriptedSession(echo), talk) == ["a", "b", "c"]


def test_the_endpoint_is_asked_for_only_when_it_is_read() -> None:
    asked: list[None] = []

    def endpoint() -> Any:
        asked.append(None)
        return ENDPOINT

    async def talk() -> None:
        tools = make_policy(ScriptedSession(lines("1"))).tools
        session = ScriptedSession(lines("1"))
        policy = Policy(session=session, name="tiny", endpoint=endpoint, system="", tools=tools)
        await policy.chat().say("a")
        assert not asked
        assert (policy.base_url, policy.api_key, policy.name) == (*ENDPOINT, "tiny")
        assert asked

    asyncio.run(talk())


def test_a_grade_that_failed_fails_the_session() -> None:
    async def grader(text: str) -> Grade:
        return GradeFailed("no idea")

    async def episode(task: Task, policy: Policy) -> float:
        return await task.grade((await policy.chat().say(task.text)).text)

    outcome = asyncio.run(play(episode, "4", grader=grader))
    assert outcome == EpisodeFailed("sums:1: grading failed: no idea")


def untyped(expression):  # type: ignore[no-untyped-def] # what is tested
    return expression


@pytest.mark.parametrize(
    ("talk", "error", "words"),
    [
        (lambda policy: policy.chat().say(3), TypeError, "chat.say takes text, not a int: 3"),
        (lambda policy: policy.chat().run("a", max_turns=0), ValueError, "max_turns = 0 leaves"),
        (lambda policy: policy.chat(tools=[untyped]).run("a"), ConfigError, "no type for its parameter"),
        (lambda policy: policy.chat(tools=[calc, calc]).run("a"), ConfigError, "two tools"),
        (lambda policy: make_task().grade(cast(str, 3)), TypeError, "task.grade takes the text"),
    ],
)
def test_wrong_arguments_are_named(talk: Callable[[Policy], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run_chat(ScriptedSession(lines("1")), talk)
