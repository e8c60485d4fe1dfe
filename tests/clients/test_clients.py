"""Agents that exist already play an episode of three turns through the gateway, told only a base URL and a key.

Each program in `programs` runs in `.venv-clients`, where freerun is not installed. Gateway, sessions and engine
are those of a run. What the policy says is scripted (`loaded_dice.py`), as a small model would call no tools.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from engine_rig import EngineRig
from loaded_dice import EnginePolicy
from running_gateways import RunningGateway, running_gateway

from freerun.chat.messages import ChatCall, Reply
from freerun.chat.session import ChatSession
from freerun.gateway.sessions import SessionKeys

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-clients" / "bin" / "python"
MAX_SECONDS = 240
"""For a client that hangs; most of a client's time is its imports."""

CALLS = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 2,  "b":2}}\n</tool_call>',
    'Now 3 more.\n<tool_call>\n{"name": "add", "arguments": {"b":3,"a" : 4}}\n</tool_call>',
]
"""Odd white space: what a client sends back shows whether it writes the JSON anew."""
ANSWER = "It is 7."
ANSWER_BY_TOOL = f'<tool_call>\n{{"name": "final_answer", "arguments": {{"answer": "{ANSWER}"}}}}\n</tool_call>'

THAT_APPEND = [
    "openai_chat",
    "openai_streaming",
    "agents_responses",
    "agents_chat",
    "litellm_chat",
    "pydantic_ai_agent",
    "langgraph_agent",
    "anthropic_messages",
]


class RecordedSession:
    """A session that keeps what it was asked."""

    def __init__(self, session: ChatSession) -> None:
        self.calls: list[ChatCall] = []
        self._session = session

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        self.calls.append(call)
        return await self._session.reply(call)


@dataclass(frozen=True)
class Played:
    """A session that a client has played."""

    said: str
    """The client's last line."""
    session: ChatSession
    calls: list[ChatCall]
    policy: EnginePolicy
    num_adopted_tokens: int
    """Tokens that the engine had in a parked cache."""


class Rig:
    """A gateway that runs, sessions of an engine behind it, and clients that are started before it."""

    def __init__(self, engine: EngineRig, keys: SessionKeys, gateway: RunningGateway) -> None:
        self.engine = engine
        self._keys = keys
        self._gateway = gateway

    @cache  # noqa: B019 - one rig
    def play(self, program: str, *, last_line: str = ANSWER) -> Played:
        num_adopted_tokens = self.engine.num_adopted_tokens
        session, policy = self.engine.session(*CALLS, last_line)
        recorded = RecordedSession(session)
        key = self._keys.add(recorded)
        said = run_program(program, key=key, base_url=self._gateway.base_url, origin=self._gateway.origin)
        self._keys.remove(key)
        num_adopted_tokens = self.engine.num_adopted_tokens - num_adopted_tokens
        return Played(said, session, recorded.calls, policy, num_adopted_tokens)


def run_program(program: str, *, key: str, base_url: str, origin: str) -> str:
    """Its last line; it knows nothing of freerun but what is in its environment."""
    assert PYTHON.exists(), "no .venv-clients; run make clients"
    ended = subprocess.run(
        [PYTHON, HERE / "programs" / f"{program}.py"],
        env={
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": origin,
            "ANTHROPIC_API_KEY": key,
        },
        input=json.dumps({"text": "What is 2 + 2 + 3?"}),
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.rstrip().splitlines()[-1]


@pytest.fixture(scope="module")
def rig(engine_rig: EngineRig) -> Iterator[Rig]:
    keys = SessionKeys("policy")
    with running_gateway(keys) as gateway:
        yield Rig(engine_rig, keys, gateway)


def tool_results(call: ChatCall) -> list[str]:
    return [message.content for message in call.messages if message.role == "tool"]


@pytest.mark.parametrize("program", THAT_APPEND)
def test_a_client_that_appends_plays_one_sequence_of_exact_tokens(program: str, rig: Rig) -> None:
    played = rig.play(program)
    assert played.said == ANSWER
    assert [tool_results(call) for call in played.calls] == [[], ["4"], ["4", "7"]]
    [sequence] = played.session.sequences()
    assert [span.call for span in sequence.completion.spans if span.version is not None] == [0, 1, 2]
    rig.engine.assert_exact(played.session, played.policy)
    # Each turn continues in the cache of the one before.
    assert played.num_adopted_tokens > 2 * len(played.policy.asked[0].token_ids)


@pytest.mark.parametrize("program", ["pydantic_ai_agent", "langgraph_agent", "anthropic_messages"])
def test_a_call_that_a_client_writes_anew_is_known_by_its_id(program: str, rig: Rig) -> None:
    played = rig.play(program)
    said = [message for message in played.calls[-1].messages if message.role == "assistant"]
    [[first], [second]] = [message.tool_calls for message in said]
    assert [json.loads(call.arguments) for call in (first, second)] == [{"a": 2, "b": 2}, {"a": 4, "b": 3}]
    assert first.arguments not in CALLS[0]
    assert second.arguments not in CALLS[1]
    assert len(played.session.sequences()) == 1


def test_turns_that_smolagents_shows_as_prose_are_sequences_of_their_own(rig: Rig) -> None:
    played = rig.play("smolagents_agent", last_line=ANSWER_BY_TOOL)
    assert played.said == ANSWER
    assert any("Calling tools:" in message.content for message in played.calls[-1].messages)
    assert len(played.session.sequences()) == len(played.calls) == 3
    rig.engine.assert_exact(played.session, played.policy)
