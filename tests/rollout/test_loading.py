"""A recipe's episode is found, and refused before the first session if it cannot be one."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from played_sessions import ScriptedSession, Words, lines, play, tool_call

from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError
from freerun.rollout import loading
from freerun.rollout.episode import Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.rollout.loading import open_episode, reads_endpoint
from freerun.types import Reward

MODULE = '''
from dataclasses import dataclass

async def episode(task, policy):
    reply = await policy.chat().say(task.text)
    return await task.grade(reply.text)

class Player:
    async def __call__(self, task, policy):
        return await episode(task, policy)

player = Player()

class Echo:
    def reset(self, task):
        self.word = task.settings.get("word", "yes")
        return f"say {self.word}"

    def step(self, action):
        return "", float(action == self.word), True

def calc(expression: str) -> str:
    """Work out an arithmetic expression, such as 12*7."""
    return str(eval(expression))

async def lookup(city: str) -> str:
    return f"{city} is large"

def plain(task, policy):
    return 1.0

async def lonely(task):
    return 1.0

def untyped(expression):
    return expression

number = 3
'''


@pytest.fixture(autouse=True)
def my_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the current directory."""
    (tmp_path / "my_agent.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("raise SystemExit('no key')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def run(config: RolloutConfig, *words: Words, max_turns: int = 9, **task: Any) -> EpisodeDone | EpisodeFailed:
    async def session() -> EpisodeDone | EpisodeFailed:
        async with open_episode(config) as episode:
            return await play(episode, session=ScriptedSession(lines(*words), max_turns=max_turns), **task)

    return asyncio.run(session())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (RolloutConfig(episode="my_agent:episode"), ("4",)),
        (RolloutConfig(episode="my_agent:player"), ("4",)),
        (RolloutConfig(tools=("my_agent:calc",)), (tool_call("calc", '{"expression": "2+2"}'), "4")),
        (
            RolloutConfig(tools=("my_agent:calc", "my_agent:lookup")),
            (tool_call("lookup", '{"city": "Rome"}'), "4"),
        ),
        (RolloutConfig(command="echo 4"), ()),
    ],
)
def test_each_kind_of_episode_is_played_and_graded(config: RolloutConfig, words: tuple[Words, ...]) -> None:
    if config.command:  # its calls come over HTTP, so here there are none
        outcome = run(config, "4")
        assert isinstance(outcome, EpisodeFailed)
        assert "nothing to train on" in outcome.reason
    else:
        outcome = run(config, *words)
        assert isinstance(outcome, EpisodeDone)
        assert outcome.reward == Reward(5.0, True, {"number": 1.0})


def test_an_environment_is_played_with_its_settings() -> None:
    outcome = run(RolloutConfig(episode="my_agent:Echo"), "no", settings={"word": "no"})
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(1.0, True, turns=(1.0,))


def test_a_conversation_with_tools_is_graded_by_its_last_words_at_a_limit_too() -> None:
    config = RolloutConfig(tools=("my_agent:calc",))
    call = tool_call("calc", '{"expression": "2+2"}')
    for words, value in (((call, "4"), 5.0), ((call,), -5.0), ((tool_call("calc", content="4"),), 5.0)):
        outcome = run(config, *words, max_turns=2)
        assert isinstance(outcome, EpisodeDone)
        assert outcome.reward.value == value
        assert outcome.is_truncated is (len(words) == 1)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (RolloutConfig(episode="my_agent"), "does not name a function"),
        (RolloutConfig(episode="my_agent.py:episode"), 'leave out .py: "my_agent:episode"'),
        (RolloutConfig(episode="my_agnet:episode"), "No module named 'my_agnet'"),
        (RolloutConfig(episode="my_broken:episode"), "failed with SystemExit: no key"),
        (RolloutConfig(episode="my_agent:epsiode"), 'has no function "epsiode"'),
        (RolloutConfig(episode="my_agent:number"), "is a int, not a function"),
        (RolloutConfig(episode="my_agent:plain"), '"my_agent:plain" is not async; define it as async def'),
        (RolloutConfig(episode="my_agent:lonely"), "too many positional arguments.*episode.task, policy"),
        (RolloutConfig(episode="my_agent:Player"), 'the class "my_agent:Player" has no method reset'),
        (RolloutConfig(tools=("my_agent:untyped",)), '"my_agent:untyped": the tool "untyped" has no type'),
        (RolloutConfig(tools=("my_agent:calc", "my_agent:calc")), 'two tools are named "calc"'),
        (RolloutConfig(tools=("calc",)), "does not name a function"),
        (RolloutConfig(command="no-such-program"), "there is no program"),
    ],
)
def test_what_cannot_be_an_episode_is_refused(config: RolloutConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(config, "4")


def test_a_prefix_names_an_adapter_that_opens_and_closes_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def open_one(name: str, config: RolloutConfig) -> AsyncIterator[Episode]:
        async def episode(task: Task, policy: Policy) -> float:
            await policy.chat().say(name)
            return float(config.arguments["scale"])

        events.append(f"open {name}")
        yield episode
        events.append("close")

    adapter = ModuleType("an_adapter")
    adapter.open_episode = open_one  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "an_adapter", adapter)
    monkeypatch.setitem(loading.ADAPTERS, "other", "an_adapter")
    outcome = run(RolloutConfig(episode="other:http://host:8000", settings=("scale=0.5",)), "4")
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward.value == 0.5
    assert events == ["open http://host:8000", "close"]


def test_an_episode_that_reads_the_endpoint_is_known_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks_over_http.py").write_text("async def episode(task, policy):\n    return policy.base_url\n")
    (tmp_path / "asks_here.py").write_text("async def episode(task, policy):\n    return 0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert reads_endpoint(RolloutConfig(episode="asks_over_http:episode"))
    assert not reads_endpoint(RolloutConfig(episode="asks_here:episode"))
    assert reads_endpoint(RolloutConfig(episode="verifiers:some-env"))
    assert not reads_endpoint(RolloutConfig(tools=("my_tools:calc",)))
