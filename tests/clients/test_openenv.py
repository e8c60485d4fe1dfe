"""The policy plays a game behind OpenEnv's own server, which runs in `.venv-openenv` (`make environments`).

Without it, only the game with a server of tests/support is played, which speaks the same protocol.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_rig import EngineRig
from game_server import GameServer
from played_sessions import ENDPOINT, Script, ScriptedSession, lines, make_task, play, said

from freerun.chat.messages import ChatCall
from freerun.chat.session import ChatSession
from freerun.config.rollout import RolloutConfig
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Policy
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.rollout.loading import open_episode
from freerun.rollout.tools import ToolRunner
from freerun.types import Reward

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-openenv" / "bin" / "python"
MAX_SECONDS = 240.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server for two games at a time."""
    if not PYTHON.exists():
        pytest.skip("no .venv-openenv; run make environments")
    with subprocess.Popen(
        [PYTHON, HERE / "environments" / "guess_server.py"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


def play_all(url: str, *sessions: ScriptedSession, ordinal: int = 0) -> list[EpisodeDone | EpisodeFailed]:
    async def run() -> list[EpisodeDone | EpisodeFailed]:
        async with open_episode(RolloutConfig(episode=f"openenv:{url}")) as episode:
            played = (play(episode, session=session, text="", ordinal=ordinal) for session in sessions)
            return await asyncio.gather(*played)

    return asyncio.run(run())


def bisect() -> Script:
    low, high = 1, 9

    def guess(call: ChatCall) -> str:
        nonlocal low, high
        middle = (low + high) // 2
        match call.messages[-1].content:
            case "higher":
                low = middle + 1
            case "lower":
                high = middle - 1
        return str((low + high) // 2)

    return guess


@pytest.mark.parametrize("ordinal", range(4))
def test_the_reward_of_the_environment_is_that_of_the_session(url: str, ordinal: int) -> None:
    session = ScriptedSession(bisect())
    [outcome] = play_all(url, session, ordinal=ordinal)
    assert isinstance(outcome, EpisodeDone)
    *wrong, last = outcome.reward.turns
    assert (wrong, last) == ([-0.1] * (session.num_calls - 1), 1.0)
    assert said(session.calls[0].messages) == ["user: Guess a number from 1 to 9."]


def test_sessions_of_a_group_have_the_same_secret(url: str) -> None:
    first, second = play_all(url, *(ScriptedSession(lines(*"13579")) for _ in range(2)))
    assert isinstance(first, EpisodeDone)
    assert isinstance(second, EpisodeDone)
    assert first.reward == second.reward


def test_an_error_of_the_environment_fails_the_session(url: str) -> None:
    [outcome] = play_all(url, ScriptedSession(lines("seven")))
    assert isinstance(outcome, EpisodeFailed)
    assert "invalid literal for int" in outcome.reason


async def play_on_engine(url: str, session: ChatSession) -> EpisodeDone:
    tools = ToolRunner(seconds=MAX_SECONDS)
    policy = Policy(session=session, name="policy", endpoint=lambda: ENDPOINT, system="", tools=tools)
    async with open_episode(RolloutConfig(episode=f"openenv:{url}")) as episode:
        outcome = await run_episode(episode, make_task(text=""), policy, SessionClock(MAX_SECONDS))
    assert isinstance(outcome, EpisodeDone), outcome
    return outcome


def assert_one_exact_sequence(outcome: EpisodeDone, *, num_calls: int) -> None:
    """What the environment said is given, each reply is sampled, in the order of the game."""
    [sequence] = outcome.sequences
    spans = sequence.completion.spans
    assert [span.call for span in spans if span.version is not None] == list(range(num_calls))
    assert [span.version is None for span in spans] == [False, True] * (num_calls - 1) + [False]


def test_a_game_on_a_real_engine_is_one_sequence_of_exact_tokens(url: str, engine_rig: EngineRig) -> None:
    # White space, as a digit could be cut into tokens in one way only.
    session, policy = engine_rig.session(*(f"{' ' * 12}{number}" for number in "12345"))
    outcome = asyncio.run(play_on_engine(url, session))
    *wrong, last = outcome.reward.turns
    assert wrong == [-0.1] * (len(policy.asked) - 1)
    assert last in (1.0, -0.1)
    assert_one_exact_sequence(outcome, num_calls=len(policy.asked))
    engine_rig.assert_exact(session, policy)


def test_a_game_behind_its_protocol_on_a_real_engine_is_one_sequence_of_exact_tokens(
    engine_rig: EngineRig,
) -> None:
    async def run() -> EpisodeDone:
        async with GameServer(secret=secret).running() as url:
            return await play_on_engine(url, session)

    secret = "It is five, I am sure."
    session, policy = engine_rig.session("It is three, I guess.", "Then four is the answer.", secret)
    num_adopted_tokens = engine_rig.num_adopted_tokens
    outcome = asyncio.run(run())
    assert outcome.reward == Reward(0.5, True, turns=(-0.25, -0.25, 1.0))
    assert_one_exact_sequence(outcome, num_calls=3)
    engine_rig.assert_exact(session, policy)
    # Each turn continues in the cache of the one before.
    assert engine_rig.num_adopted_tokens - num_adopted_tokens > len(policy.asked[0].token_ids)
