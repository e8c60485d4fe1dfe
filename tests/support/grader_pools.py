"""Grader pools for tests: real processes around `unruly_task`, which does what a completion tells it to."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_table import children_running

from freerun.config.reward import RewardConfig
from freerun.processes.local import LocalLauncher
from freerun.protocols import Grader
from freerun.reward.pool import GraderPool
from freerun.types import Completion, FinishReason, Grade, GradeFailed, Prompt, Reward, Span

PATIENCE_SECONDS = 60.0
MAX_TOKENS = 100
RIGHT, WRONG = Reward(5.0, True), Reward(-5.0, False)


def enter_users_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go where a user would run freerun, beside a my_task.py."""
    shutil.copy(Path(__file__).parent / "unruly_task.py", directory / "my_task.py")
    monkeypatch.chdir(directory)


def make_prompt(answer: str = "42") -> Prompt:
    return Prompt(
        ordinal=0, key="times-tables:6*7", text="6 * 7 =", answer=answer, token_ids=np.array([1], np.int32)
    )


def make_completion(text: str, finish_reason: FinishReason = "stop", num_tokens: int = 1) -> Completion:
    return Completion(
        token_ids=np.full(num_tokens, 2, np.int32),
        logprobs=np.full(num_tokens, -0.5, np.float32),
        spans=(Span(0, num_tokens),),
        finish_reason=finish_reason,
        text=text,
    )


def make_pool(
    *,
    start_seconds: float = PATIENCE_SECONDS,
    deaths: list[str] | None = None,
    own_graders: Sequence[str] = (),
    judges_sessions: bool = False,
    **settings: Any,
) -> GraderPool:
    """A pool that is not started; what becomes of its processes is noted in `deaths`."""
    noted: list[str] = [] if deaths is None else deaths
    reward: dict[str, Any] = {"grader": "my_task:grade", "timeout_seconds": 20.0} | settings
    return GraderPool(
        RewardConfig(**reward),
        max_completion_tokens=MAX_TOKENS,
        launcher=LocalLauncher(Path("logs"), {}),
        start_seconds=start_seconds,
        on_death=lambda worker, reason, is_restarted: noted.append(reason),
        own_graders=own_graders,
        judges_sessions=judges_sessions,
    )


def with_pool(act: Callable[[GraderPool], Awaitable[None]], **settings: Any) -> list[str]:
    """Run `act` against a started pool and check that the close leaves no process; returns how others died."""
    deaths: list[str] = []

    async def main() -> None:
        pool = make_pool(deaths=deaths, **settings)
        await pool.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await act(pool)
        finally:
            await pool.close()
        assert grader_pids() == []

    asyncio.run(main())
    return deaths


async def ask(pool: Grader, text: str, answer: str = "42") -> Grade:
    return await pool.grade(make_prompt(answer), make_completion(text))


async def ask_and_fail(pool: Grader, text: str) -> str:
    grade = await ask(pool, text)
    assert isinstance(grade, GradeFailed), grade
    return grade.reason


def grader_pids() -> list[int]:
    """The grader processes of this process that run now."""
    return [child.pid for child in children_running("freerun.reward.worker")]


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def pid_in(name: str) -> int:
    return int(Path(name).read_text())


def is_written(name: str) -> bool:
    return Path(name).exists() and Path(name).read_text() != ""
