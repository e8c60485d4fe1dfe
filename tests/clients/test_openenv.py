"""The policy plays a game behind OpenEnv's own server, which runs in `.venv-openenv` (`make environments`)."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from played_sessions import Script, ScriptedSession, lines, play, said

from freerun.chat.messages import ChatCall
from freerun.config.rollout import RolloutConfig
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.rollout.loading import open_episode

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-openenv" / "bin" / "python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-openenv; run make environments")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server for two games at a time."""
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
