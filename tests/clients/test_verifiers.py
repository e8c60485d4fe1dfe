"""An environment of verifiers plays the policy through the gateway, on a real engine, and says what it is worth.

verifiers runs in `.venv-verifiers` (`make environments`), its harness and its tool in processes of their own.
"""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from engine_rig import LIMITS, EngineRig
from played_sessions import make_task

from freerun.chat.session import SessionLimits
from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError
from freerun.gateway.server import Gateway
from freerun.gateway.sessions import SessionKeys
from freerun.rollout import verifiers_runner
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Endpoint, Policy, PolicySession
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.rollout.loading import open_episode
from freerun.rollout.tools import ToolRunner
from freerun.types import Reward, Sampling

ENVIRONMENTS = Path(__file__).parent / "environments"
PYTHON = Path(__file__).parent.parent.parent / ".venv-verifiers" / "bin" / "python"
MAX_SECONDS = 240.0

CALLS = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 2,  "b":2}}\n</tool_call>',
    'And 3.\n<tool_call>\n{"name": "add", "arguments": {"b":3,"a" : 4}}\n</tool_call>',
]

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-verifiers; run make environments"),
    pytest.mark.usefixtures("_with_package"),
]


@pytest.fixture
def _with_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if sums_v1 were installed where verifiers is."""
    monkeypatch.setenv("PYTHONPATH", str(ENVIRONMENTS))


def config(package: str = "sums-v1", *settings: str) -> RolloutConfig:
    return RolloutConfig(episode=f"verifiers:{package}", settings=(f'python="{PYTHON}"', *settings))


async def play(session: PolicySession, *, task: int = 2) -> EpisodeDone | EpisodeFailed:
    keys = SessionKeys("policy")
    key = keys.add(session)
    gateway = Gateway(keys, sampling=Sampling(max_completion_tokens=100))
    url = await gateway.start()
    policy = Policy(
        session=session,
        name="policy",
        endpoint=lambda: Endpoint(url, key),
        system="",
        tools=ToolRunner(seconds=MAX_SECONDS),
    )
    try:
        async with open_episode(config()) as episode:
            return await run_episode(episode, make_task(row={"task": task}), policy, SessionClock(MAX_SECONDS))
    finally:
        await gateway.close()


def test_an_episode_of_three_turns_has_the_reward_of_its_environment(engine_rig: EngineRig) -> None:
    session, policy = engine_rig.session(*CALLS, "It is 7.")
    outcome = asyncio.run(play(session))
    assert isinstance(outcome, EpisodeDone), outcome
    assert outcome.reward == Reward(1.5, True, {"is_right": 1.0, "is_short": 0.5})
    [sequence] = outcome.sequences
    assert [span.call for span in sequence.completion.spans if span.version is not None] == [0, 1, 2]
    engine_rig.assert_exact(session, policy)


def test_a_wrong_answer_is_worth_what_the_environment_says(engine_rig: EngineRig) -> None:
    session, _ = engine_rig.session("I do not know.")
    outcome = asyncio.run(play(session))
    assert isinstance(outcome, EpisodeDone), outcome
    assert outcome.reward == Reward(0.0, False, {"is_right": 0.0, "is_short": 0.0})


def test_a_session_at_its_limit_is_truncated_and_not_failed(engine_rig: EngineRig) -> None:
    limits = SessionLimits(1, LIMITS.max_session_tokens, LIMITS.max_completion_tokens)
    session, _ = engine_rig.session(*CALLS, limits=limits)
    outcome = asyncio.run(play(session))
    assert isinstance(outcome, EpisodeDone), outcome
    assert outcome.is_truncated


def test_a_task_that_the_environment_does_not_have_fails_the_session(engine_rig: EngineRig) -> None:
    session, _ = engine_rig.session("7")
    outcome = asyncio.run(play(session, task=99))
    assert isinstance(outcome, EpisodeFailed)
    assert "there is no task 99; the environment has 3" in outcome.reason


def test_a_package_that_is_not_installed_refuses_the_run() -> None:
    async def run() -> None:
        async with open_episode(config("no-such-package")):
            pass

    with pytest.raises(ConfigError, match="did not start"):
        asyncio.run(run())


def test_its_tasks_are_written_as_rows() -> None:
    wanted = json.dumps({"package": "sums-v1", "settings": {"num_tasks": 2}})
    written = subprocess.run(
        [PYTHON, "-P", verifiers_runner.__file__, "tasks", wanted], capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in written.stdout.splitlines()] == [
        {"question": "What is 0 + 0 + 3?", "answer": "", "task": 0},
        {"question": "What is 1 + 1 + 3?", "answer": "", "task": 1},
    ]
