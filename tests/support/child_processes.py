"""What tests of a worker's process need: start one that does what it is told, watch it end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from process_table import is_running
from the_worker import Did

from freerun.processes.local import Child

PATIENCE_SECONDS = 60.0


def let_children_find_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        time.sleep(0.02)


async def hear(child: Child[Did]) -> Did:
    """The next message; there must be one."""
    message = await child.receive()
    assert message is not None
    return message


def with_child(tmp_path: Path, act: Callable[[Child[Did]], Awaitable[None]], **options: Any) -> None:
    """Run `act` against a started worker, and leave nothing behind."""

    async def main() -> None:
        child: Child[Did] = await Child.start(
            "worker-0", "the_worker", receives=Did, log_path=tmp_path / "logs" / "worker-0.log", **options
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await child.receive() == Did("started")
                await act(child)
        finally:
            child.kill()
            await child.wait(PATIENCE_SECONDS)
        assert not is_running(child.pid)

    asyncio.run(main())
