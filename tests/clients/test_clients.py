"""Agents that exist already play an episode of three turns through the gateway, told only a base URL and a key.

Each program in `programs` runs in `.venv-clients`, where freerun is not installed. Gateway, sessions and engine
are those of a run. What the policy says is scripted (`loaded_dice.py`), as a small model would call no tools.
"""

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from chat_templates import template_texts
from exact_sessions import assert_logprobs_of_a_full_forward, assert_trained_as_sampled
from loaded_dice import TEMPERATURE, EnginePolicy, LoadedDice
from running_gateways import RunningGateway, running_gateway
from tiny_models import TINY, random_model
from tokenizer_kinds import byte_level, load

import freerun.engine.engine
from freerun.chat.messages import ChatCall, Reply
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.config.engine import EngineConfig
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.gateway.sessions import SessionKeys

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-clients" / "bin" / "python"
MAX_SECONDS = 240
"""For a client that hangs; most of a client's time is its imports."""
MAX_TOKENS = 16_000
"""smolagents has a long system prompt, and the tokens of the small tokenizer are short."""

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

    def __init__(self, tokenizer: Tokenizer, dice: LoadedDice, keys: SessionKeys, gateway: RunningGateway) -> None:
        self.tokenizer = tokenizer
        self.model = random_model(
            0, dataclasses.replace(TINY, vocab_size=tokenizer.vocab_size, max_positions=MAX_TOKENS)
        )
        config = EngineConfig(num_slots=2, cache_tokens=2 * MAX_TOKENS, parked_tokens=MAX_TOKENS)
        self.engine = Engine(self.model, config, text=tokenizer, max_sequence_tokens=MAX_TOKENS, seed=0)
        self.engine.load(0, {name: parameter.data for name, parameter in self.model.named_parameters()})
        self._renderer = Renderer(tokenizer, use_chat_template=True)
        self._dice = dice
        self._keys = keys
        self._gateway = gateway
        self._num_sessions = 0

    @cache  # noqa: B019 - one rig
    def play(self, program: str, *, last_line: str = ANSWER) -> Played:
        self._num_sessions += 1
        num_adopted_tokens = self.engine.stats().num_adopted_tokens
        policy = EnginePolicy(
            self.engine, self._dice, self.tokenizer, lines=[*CALLS, last_line], session=self._num_sessions
        )
        limits = SessionLimits(max_turns=6, max_session_tokens=MAX_TOKENS, max_completion_tokens=300)
        session = ChatSession(self._renderer, policy, limits)
        recorded = RecordedSession(session)
        key = self._keys.add(recorded)
        said = run_program(program, key=key, base_url=self._gateway.base_url, origin=self._gateway.origin)
        self._keys.remove(key)
        num_adopted_tokens = self.engine.stats().num_adopted_tokens - num_adopted_tokens
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
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """With the template of Qwen2.5, which tells the policy of its tools."""
    directory = tmp_path_factory.mktemp("tokenizer")
    load(directory, byte_level())
    (directory / "chat_template.jinja").write_text(template_texts()["hf_qwen2_5"])
    return Tokenizer.load(directory)


@pytest.fixture(scope="module")
def rig(tokenizer: Tokenizer) -> Iterator[Rig]:
    dice, keys = LoadedDice(), SessionKeys("policy")
    with pytest.MonkeyPatch.context() as patch, running_gateway(keys) as gateway:
        patch.setattr(freerun.engine.engine, "sample", dice)
        yield Rig(tokenizer, dice, keys, gateway)


def assert_exact(played: Played, rig: Rig) -> None:
    sequences = played.session.sequences()
    assert_trained_as_sampled(sequences, played.policy)
    assert_logprobs_of_a_full_forward(sequences, rig.model, temperature=TEMPERATURE)
    for completion in played.policy.completions:
        assert rig.tokenizer.encode(completion.text).tolist() != completion.token_ids[:-1].tolist()


def tool_results(call: ChatCall) -> list[str]:
    return [message.content for message in call.messages if message.role == "tool"]


@pytest.mark.parametrize("program", THAT_APPEND)
def test_a_client_that_appends_plays_one_sequence_of_exact_tokens(program: str, rig: Rig) -> None:
    played = rig.play(program)
    assert played.said == ANSWER
    assert [tool_results(call) for call in played.calls] == [[], ["4"], ["4", "7"]]
    [sequence] = played.session.sequences()
    assert [span.call for span in sequence.completion.spans if span.version is not None] == [0, 1, 2]
    assert_exact(played, rig)
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
    assert_exact(played, rig)
