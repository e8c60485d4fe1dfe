"""Agent pools for tests: real processes around `unruly_episode`, and a policy that says what the test says."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_table import children_running
from small_prompts import make_tokenizer

from freerun.chat.session import SampleRequest
from freerun.config.recipe import RuntimeConfig
from freerun.config.rollout import GatewayConfig, RolloutConfig
from freerun.processes.local import LocalLauncher
from freerun.rollout.sessions import PlayedSession, SessionJob
from freerun.types import Completion, Grade, Reward, Sampling, Span
from freerun.workers.agent_messages import StartAgents
from freerun.workers.agent_pool import AgentPool

PATIENCE_SECONDS = 120.0
WORKER = "freerun.workers.agent_worker"


def enter_users_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go where a user would run freerun, beside a my_agent.py, with a tokenizer of single characters."""
    shutil.copy(Path(__file__).parent / "unruly_episode.py", directory / "my_agent.py")
    make_tokenizer(directory / "model")
    monkeypatch.chdir(directory)


class ScriptedPolicy:
    """Answers every call with the same text, as an engine would; notes what it was asked."""

    def __init__(self, text: str = "yes$") -> None:
        self.tokenizer = make_tokenizer(Path("model"))
        self.text = text
        self.asked: list[tuple[str, SampleRequest]] = []
        self.num_aborted = 0
        self.seconds = 0.0
        """How long it takes to answer."""

    async def sample(self, request: SampleRequest) -> tuple[Completion, ...]:
        self.asked.append((self.tokenizer.decode(request.token_ids), request))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise
        return tuple(self.completion(request.call + index) for index in range(request.num_samples))

    def completion(self, call: int) -> Completion:
        token_ids = self.tokenizer.encode(self.text, add_special_tokens=False)
        return Completion(
            token_ids=token_ids,
            logprobs=np.full(len(token_ids), -0.5, np.float32),
            spans=(Span(0, len(token_ids), call),),
            finish_reason="stop",
            text=self.text,
        )

    async def grade(self, text: str) -> Grade:
        return Reward(len(text) / 2, True, {"length": float(len(text))})


def make_job(number: int, text: str, *, sample: int = 0, is_evaluation: bool = False) -> SessionJob:
    return SessionJob(
        number=number,
        ordinal=7,
        key="row 7",
        text=text,
        answer="42",
        row={"level": 3},
        sample=sample,
        is_evaluation=is_evaluation,
    )


def make_pool(
    *,
    deaths: list[str] | None = None,
    is_synchronous: bool = False,
    silence_seconds: float = 30.0,
    **settings: Any,
) -> AgentPool:
    """A pool that is not started; what becomes of its processes is noted in `deaths`."""
    noted: list[str] = [] if deaths is None else deaths
    chosen: dict[str, Any] = {
        "episode": "my_agent:episode",
        "settings": ("size=7",),
        "max_session_tokens": 200,
    } | settings
    if not chosen["episode"]:
        del chosen["settings"]
    return AgentPool(
        StartAgents(
            rollout=RolloutConfig(**chosen),
            gateway=GatewayConfig(),
            sampling=Sampling(max_completion_tokens=20),
            model_directory="model",
            model_name="tiny",
            uses_chat_template=bool(settings.get("tools")),
            system_prompt="",
            seed=3,
        ),
        launcher=LocalLauncher(Path("logs"), {}),
        runtime=RuntimeConfig(start_seconds=PATIENCE_SECONDS, silence_seconds=silence_seconds),
        on_death=lambda worker, reason, is_restarted: noted.append(reason),
        is_synchronous=is_synchronous,
    )


def with_pool(act: Callable[[AgentPool, ScriptedPolicy], Awaitable[None]], **settings: Any) -> list[str]:
    """Run `act` against a started pool and check that the close leaves no process; returns how others died."""
    deaths: list[str] = []

    async def main() -> None:
        pool, policy = make_pool(deaths=deaths, **settings), ScriptedPolicy()
        await pool.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await act(pool, policy)
        finally:
            await pool.close()
        assert agent_pids() == []

    asyncio.run(main())
    return deaths


async def play(pool: AgentPool, policy: ScriptedPolicy, text: str, *, number: int = 0) -> PlayedSession:
    return await pool.run(make_job(number, text), sample=policy.sample, grade=policy.grade)


def agent_pids() -> list[int]:
    """The agent workers of this process that run now, with their guards."""
    return [child.pid for child in children_running(WORKER)]
