"""User code in threads: it gives its result or its exception, and what hangs is left behind and counted."""

import asyncio
import threading
from typing import Any

import pytest

from freerun.rollout import abandoned as module
from freerun.rollout.abandoned import Abandoned, CallThread, TooManyAbandonedError


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_thread_returns_results_and_raises_what_the_call_raises() -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def run() -> None:
        thread = CallThread("test", Abandoned())
        assert await thread.call(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await thread.call(divmod, 7, 0)
        with pytest.raises(SystemExit):
            await thread.call(leave)
        thread.close()

    asyncio.run(run())


def test_all_calls_of_one_thread_are_made_by_it() -> None:
    async def run() -> None:
        thread = CallThread("test", Abandoned())
        assert len({await thread.call(threading.get_ident) for _ in range(3)}) == 1
        thread.close()

    asyncio.run(run())


def test_a_call_that_hangs_is_counted_until_it_ends() -> None:
    async def run() -> None:
        is_over = threading.Event()
        abandoned = Abandoned()
        call = asyncio.create_task(CallThread("test", abandoned).call(is_over.wait))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert abandoned.num_running == 1
        is_over.set()
        await until(lambda: abandoned.num_running == 0)

    asyncio.run(run())


def test_a_process_full_of_hanging_calls_starts_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ABANDONED", 2)

    async def run() -> None:
        abandoned = Abandoned()
        forever: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for future in forever:
            abandoned.add(future)
        with pytest.raises(TooManyAbandonedError, match="2 tools, environments or episodes"):
            CallThread("test", abandoned)
        forever[0].set_exception(ValueError("nobody asks"))
        await until(lambda: abandoned.num_running == 1)
        CallThread("test", abandoned).close()
        forever[1].cancel()

    asyncio.run(run())
