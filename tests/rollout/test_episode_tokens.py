"""Episodes with real sessions: what the policy sampled in them is what is trained on, token by token."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_loops import in_event_loop
from played_sessions import ENDPOINT, make_task
from scripted_policy import ScriptedPolicy
from tokenizer_kinds import byte_level, load
from written_tool_calls import hermes

import freerun
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.data.tokenizer import Tokenizer
from freerun.rollout.clock import SessionClock
from freerun.rollout.environment import environment_episode
from freerun.rollout.episode import Episode, Policy
from freerun.rollout.episode_run import EpisodeDone, run_episode
from freerun.rollout.tools import ToolRunner, function_tool
from freerun.types import Reward

LIMITS = SessionLimits(max_turns=16, max_session_tokens=3000, max_completion_tokens=200)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(tmp_path_factory.mktemp("byte_level"), byte_level())


async def play(
    episode: Episode, sampler: ScriptedPolicy, renderer: Renderer, limits: SessionLimits = LIMITS, **task: Any
) -> EpisodeDone:
    policy = Policy(
        session=ChatSession(renderer, sampler, limits),
        name="tiny",
        endpoint=lambda: ENDPOINT,
        system="",
        tools=ToolRunner(seconds=30.0),
    )
    outcome = await run_episode(episode, make_task(**task), policy, SessionClock(60.0))
    assert isinstance(outcome, EpisodeDone), outcome
    return outcome


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """What the Python examples of docs/agents.md define, as they are written there."""
    page = Path(__file__).parents[2] / "docs" / "agents.md"
    names: dict[str, Any] = {}
    for example in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        exec(example, names)
    return names


@pytest.mark.parametrize("use_chat_template", [True, False])
@in_event_loop
async def test_a_game_is_one_sequence_with_the_game_between_the_guesses(
    tokenizer: Tokenizer, documented: dict[str, Any], use_chat_template: bool
) -> None:
    secret = make_task(ordinal=3).random.randrange(100)
    texts = [str(secret + 1), "hm", str(secret - 1), str(secret)]
    sampler = ScriptedPolicy(tokenizer, texts)
    renderer = Renderer(tokenizer, use_chat_template=use_chat_template)
    outcome = await play(documented["episode"], sampler, renderer, ordinal=3)
    assert outcome.reward == Reward(1.0 - 3 / 12, True)
    [sequence] = outcome.sequences
    completion = sequence.completion
    sampled = [ids for each in sampler.completions for ids in each.token_ids.tolist()]
    assert completion.token_ids[completion.is_sampled].tolist() == sampled
    assert sequence.prompt_token_ids.tolist() == sampler.requests[0].token_ids.tolist()
    assert np.unique(completion.calls).tolist() == [0, 1, 2, 3]
    given = tokenizer.decode(completion.token_ids[~completion.is_sampled].tolist())
    places = [given.find(told) for told in ("lower", "a number, please", "higher")]
    assert places == sorted(places)
    assert min(places) >= 0


@in_event_loop
async def test_the_documented_environment_and_tool_work(tokenizer: Tokenizer, documented: dict[str, Any]) -> None:
    episode = environment_episode("docs:Countdown", documented["Countdown"])
    sampler = ScriptedPolicy(tokenizer, ["2", "1"])
    renderer = Renderer(tokenizer, use_chat_template=False)
    outcome = await play(episode, sampler, renderer, settings={"start": 2})
    assert outcome.reward == Reward(2.0, True, turns=(1.0, 1.0))
    weather = function_tool(documented["weather"]).tool
    assert weather.description == "Look up the weather."
    assert weather.parameters["properties"]["city"]["description"] == "where to look"


def calc(expression: str) -> str:
    """Work out an arithmetic expression, such as 12*7."""
    left, right = expression.split("+")
    return str(int(left) + int(right))


async def use_a_tool(task, policy):  # type: ignore[no-untyped-def] # as a user writes it
    reply = await policy.chat(tools=[calc]).run(task.text, max_turns=4)
    return await task.grade(reply.text)


@in_event_loop
async def test_calls_of_tools_are_parsed_made_and_shown(tokenizer: Tokenizer) -> None:
    texts = [*(hermes([("calc", {"expression": words})]) for words in ("2 plus 2", "2+2")), "4"]
    sampler = ScriptedPolicy(tokenizer, texts)
    outcome = await play(use_a_tool, sampler, Renderer(tokenizer, use_chat_template=True))
    assert outcome.reward == Reward(5.0, True, {"number": 1.0})
    shown = [tokenizer.decode(request.token_ids.tolist()) for request in sampler.requests]
    assert "error: ValueError" in shown[1]
    assert shown[2].count("error: ValueError") == 1
    assert len(outcome.sequences) == 1


@in_event_loop
async def test_a_conversation_that_is_too_long_is_scored(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async def chatter(task, policy):  # type: ignore[no-untyped-def] # as a user writes it
        chat = policy.chat()
        while True:
            await chat.say("and? " * 20)

    limits = SessionLimits(max_turns=16, max_session_tokens=400, max_completion_tokens=20)
    sampler = ScriptedPolicy(tokenizer, ["so"] * 16)
    outcome = await play(chatter, sampler, Renderer(tokenizer, use_chat_template=False), limits)
    assert (outcome.reward, outcome.is_truncated) == (Reward(0.0, False), True)
    assert 1 < len(sampler.requests) < 16
    [sequence] = outcome.sequences
    assert len(sequence.prompt_token_ids) + len(sequence.completion.token_ids) <= 400


@in_event_loop
async def test_rewards_of_turns_have_one_for_a_call_that_was_refused(tokenizer: Tokenizer) -> None:
    async def chatter(task, policy):  # type: ignore[no-untyped-def] # as a user writes it
        chat, turns = policy.chat(), []
        try:
            while True:
                await chat.say("and? " * 20)
                turns.append(0.5)
        except freerun.Truncated:
            return freerun.Reward(sum(turns), True, turns=tuple(turns))

    limits = SessionLimits(max_turns=16, max_session_tokens=400, max_completion_tokens=20)
    sampler = ScriptedPolicy(tokenizer, ["so"] * 16)
    outcome = await play(chatter, sampler, Renderer(tokenizer, use_chat_template=False), limits)
    assert outcome.is_truncated
    assert outcome.reward.turns == (*[0.5] * len(sampler.requests), 0.0)
